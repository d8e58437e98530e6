"""Lane: where the last tokens occurred before, the text that followed them is proposed again (prompt lookup).

A copied draft is a point mass, q(v) = 1. Under the exact law it is kept with probability p(v) and replaced from p
without v otherwise, so the emitted law is the target's. Which cycle copies, and what, is decided by committed tokens
alone. Lossy laws are refused: those that keep what the draft is sure of (cascade opt, tokenv1) would keep every copy.

Never armed by itself: it helps replies that repeat their prompt and costs verified rows in all others. The counters
`copied`, `copied_positions` and `copied_accepted` hold what it did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage

LONGEST, SHORTEST = 4, 2  # tokens of a match: longer ones say more of what follows, shorter ones are found oftener
TEXTS, LENGTH, ALPHABET = 8, 60, 3  # random texts of the proof: so few letters that every n repeats
POSITIONS = 6  # probe rows on which the law judges a point mass
EDGE = 1e-4  # how far from p(v) the proof's coins fall


class CopyDrafter:
    """Implements `runtime.decode.draft.Drafter`: copies where the text repeats, and asks `inner` elsewhere."""

    def __init__(self, inner: Any, depth: int, xp: Any, hit: Callable[[], None]) -> None:
        """inner: the head's drafter, None = no head. depth: the longest copy. xp: the module of the arrays. hit: called
        for each cycle that copies."""
        from mtrun.kernels.ngrams import NgramIndex

        self.inner, self.depth, self.xp, self.hit = inner, depth, xp, hit
        self.index = NgramIndex(LONGEST, SHORTEST)

    @property
    def source(self) -> str | None:
        if self.index.matched:
            return "copied"
        return None if self.inner is None else self.inner.source

    @property
    def max_depth(self) -> int:
        return self.depth

    def observe(self, pairs: Any) -> None:
        """Learns the tokens that followed; the first token of a prompt follows nothing and is not part of the text."""
        self.index.extend(pairs.tokens)
        if self.inner is not None:
            self.inner.observe(pairs)

    def catch_up(self) -> None:
        if self.inner is not None:
            self.inner.catch_up()

    def draft(self, depth: int, how: Any, adjust: Any, uniforms: Any) -> Any:
        """`depth` copied tokens, or what the head drafts; nothing without either."""
        from mtrun.kernels.draft import Drafted, point_masses

        tokens = self.index.continuation(min(depth, self.depth))
        if tokens:
            self.hit()
            return point_masses(tokens, self.xp, "copied")
        if self.inner is None:
            return Drafted(self.xp.array([], dtype=self.xp.int32), None)
        depth = min(depth, self.inner.max_depth)
        return self.inner.draft(depth, how, adjust, uniforms[:depth])


@dataclass(frozen=True)
class CopyDrafting:
    """Implements `runtime.decode.draft.Drafting` around the one that was there before."""

    parts: EngineParts
    before: Any
    latch: Latch
    depth: int  # of the configuration: what may be copied in a cycle

    def max_depth(self, head_depth: int) -> int:
        return max(self.depth, self.before.max_depth(head_depth))

    def around(self, drafter: Any) -> CopyDrafter:
        return CopyDrafter(self.before.around(drafter), self.depth, self.parts.trunk.xp, self.latch.hit)


@dataclass(frozen=True)
class ContextCopy:
    """The lane: replaces `parts.drafting`."""

    name: str = "context_copy"
    summary: str = "drafts copied from earlier text where the last tokens repeat it; never armed by itself"
    exactness: Exactness = Exactness.EXACT_LAW
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    auto: bool = False  # a copy that does not fit costs its rows, and only the caller knows how his replies repeat

    def supports(self, evidence: Evidence) -> Decision:
        if evidence.depth == 0:
            return Decision(False, "nothing_drafted", "draft.depth is 0, so nothing is drafted.")
        if evidence.law != "exact":
            reason = f"Under the {evidence.law} law a draft that is sure of itself would change what is emitted."
            return Decision(False, "law", reason)
        head = "beside the head's drafts" if evidence.pack.head.ok else "and there is no head to draft otherwise"
        return Decision(True, "supported", f"The exact law judges point masses, {head}.")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        assert parts is not None
        stock, latch = parts.drafting, Latch()
        hot = CopyDrafting(parts, stock, latch, evidence.depth)

        def undo() -> None:
            parts.drafting = stock

        parts.drafting = hot
        return Installed(undo, latch, hot.around, before=stock)

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """Copies are what a search of the text finds, as point masses, and the law that serves emits p under them."""
        assert parts is not None
        copied = 0
        for seed in range(TEXTS):
            count, found = _copies(parts, evidence.depth, seed)
            copied += count
            if found is not None:
                return Proof(False, found)
        error = _emitted_error(parts)
        figures = {"copied": float(copied), "max_emitted_error": error}
        if not copied:
            return Proof(False, "Nothing was copied from texts that repeat.", figures)
        if not error <= EDGE:
            return Proof(
                False, f"Under a point mass the law emits something {error:.1e} away from the target.", figures
            )
        return Proof(True, "Copies are what the text holds, and the law emits the target's rows under them.", figures)


@dataclass(frozen=True)
class _Told:
    """The fields of `runtime.decode.draft.Pairs`, for a drafter without a head."""

    tokens: list[int]


def _copies(parts: EngineParts, depth: int, seed: int) -> tuple[int, str | None]:
    """Tokens copied while a random text is told one by one, and what was wrong with them (None = nothing)."""
    import numpy as np

    from mtrun.kernels.ngrams import naive_continuation

    text = np.random.default_rng(seed).integers(0, ALPHABET, LENGTH).tolist()
    drafter, copied = parts.drafting.around(None), 0
    for end in range(1, LENGTH + 1):
        drafter.observe(_Told(text[end - 1 : end]))
        expected = naive_continuation(text[:end], LONGEST, SHORTEST, depth)
        source = drafter.source
        made = drafter.draft(depth, None, None, None)
        tokens = np.array(made.tokens).tolist()
        copied += len(tokens)
        if tokens != expected or (source == "copied") != bool(expected):
            return copied, f"Text {seed} at token {end}: {tokens} was drafted where the text holds {expected}."
        if tokens and made.source != "copied":
            return copied, f"Text {seed} at token {end}: a copy was counted as the {made.source}'s."
        if tokens and not _point_masses(made):
            return copied, f"Text {seed} at token {end}: a copied row is no point mass at its token."
    return copied, None


def _point_masses(made: Any) -> bool:
    import numpy as np

    ids, probs = np.array(made.rows.ids), np.array(made.rows.probs)
    return bool(ids.shape == probs.shape == (len(ids), 1) and (probs == 1).all()) and np.array_equal(
        ids[:, 0], np.array(made.tokens)
    )


def _emitted_error(parts: EngineParts) -> float:
    """Largest distance between an emitted row and the target's, with each draft a point mass at depth 1.

    The probability that the draft is kept is read off two coins, one on each side of p(v).
    """
    import numpy as np

    from mtrun.kernels.rows import RowFilter

    worst = 0.0
    for seed in range(POSITIONS):
        block = _one_hot_block(parts, RowFilter(1.0, 0.95, 20), seed)
        p, slot = np.array(block.p[0], dtype=np.float64), int(block.drafted.item())
        coins = [min(max(float(p[slot]) + edge, 0.0), 1 - EDGE / 2) for edge in (-EDGE, EDGE)]
        kept = [int(parts.law.judge(_with_coin(block, coin)).kept.item()) for coin in coins]
        emitted = np.array(parts.law.judge(block).replacement[0], dtype=np.float64)
        emitted *= (1 - p[slot]) / emitted.sum()
        emitted[slot] += p[slot] if kept == [int(coin < p[slot]) for coin in coins] else 1.0
        worst = max(worst, float(np.abs(emitted - p).max()))
        if not worst >= 0:
            return float("nan")
    return worst


def _one_hot_block(parts: EngineParts, how: Any, seed: int) -> Any:
    """A probe block of depth 1 whose draft is a point mass: at the target's likeliest token and at others by turns."""
    from dataclasses import replace

    from mtrun.kernels.draft import point_masses

    cycle = parts.probe_cycle(1, how, seed)
    row = cycle.rows(0, 1)
    ids = range(parts.trunk.vocab_size) if row.ids is None else row.ids[0].tolist()
    by_mass = sorted(range(len(ids)), key=lambda slot: -float(row.probs[0, slot].item()))
    chosen = ids[by_mass[seed % min(3, len(ids))]]
    made = point_masses([chosen], parts.trunk.xp, "copied")
    return replace(cycle, drafts=made.tokens, draft_rows=made.rows).block()


def _with_coin(block: Any, coin: float) -> Any:
    from dataclasses import replace

    return replace(block, coins=block.coins * 0 + coin)


LANE = ContextCopy()
