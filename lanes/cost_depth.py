"""Lane: every cycle's draft depth is chosen from measured costs of its width and from what was kept lately.

The rule and the bound on its loss are `kernels.depth_choice`'s. Costs are the medians of whole cycles, timed once when
the lane is armed, on the trunk, head, verifier and law that serve. A depth follows from tokens, outcomes and times of
earlier cycles, never from the drafts of its own, and the uniforms of a cycle are independent of all earlier ones: given
the past each cycle emits the target's law at whatever depth, so the reply does. Lossy laws are refused, because they
emit one law where a draft was judged and another elsewhere.

What repeats. Uniforms are a function of (seed, use, cycle), so another grouping into cycles spends other uniforms on
the same place of a reply: the distribution is untouched, the sampled tokens differ, greedy replies are equal whatever
the depths. So a request with a seed of its own keeps the configured depth and repeats, also after a restart; one
without is decided from live times, and its reply says that the reported seed does not repeat it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage

if TYPE_CHECKING:
    from mtrun.kernels.depth_choice import DepthChooser, WidthCosts

ROUNDS = 7  # interleaved; the median of each width counts
CONTEXT = 64  # tokens read before cycles are timed, where the trunk has room for them
LIVE_NOTE = "draft depths followed measured times, so the reported seed does not repeat this reply"
STRANDED_NOTE = "the head fell so far behind in plain cycles that reading on would cost more than drafts may lose"
STEEP = (1.4, 1.9, 2.5, 3.2, 4.0, 4.9, 5.9, 7.0)  # plain cycles of a made-up machine on which drafts are dear
FLAT = (1.02, 1.04, 1.06, 1.08, 1.1, 1.12, 1.14, 1.16)  # and of one on which they are nearly free
CYCLES = 400  # of each made-up reply in the proof


@dataclass
class CostLatch(Latch):
    """Also holds the costs in force."""

    costs: WidthCosts | None = None
    figures: dict[str, float] = field(default_factory=dict)  # the timings behind them, by name
    live: bool = True  # times of served cycles correct the costs; a proof holds them still


class CostPolicy:
    """Implements `runtime.decode.depth.DepthPolicy`."""

    def __init__(self, chooser: DepthChooser, live: bool, latch: Latch) -> None:
        self.chooser, self.live, self.latch = chooser, live, latch

    def choose(self, source: str | None, room: int) -> int:
        self.latch.hit()
        return self.chooser.choose(source, room)

    def observe(self, spent: Any) -> None:
        self.chooser.observe(spent.source, spent.drafted, spent.kept, spent.seconds)

    def notes(self) -> tuple[str, ...]:
        told = ((LIVE_NOTE, self.live), (STRANDED_NOTE, self.chooser.stranded))
        return tuple(note for note, holds in told if holds)


@dataclass(frozen=True)
class CostDepth:
    """The lane: replaces `parts.depth_policy`."""

    name: str = "cost_depth"
    summary: str = "draft depth of every cycle from measured costs and recent keeps; a seed keeps the configured depth"
    exactness: Exactness = Exactness.EXACT_LAW
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    auto: bool = True

    def supports(self, evidence: Evidence) -> Decision:
        if not evidence.pack.head.ok:
            return Decision(False, "no_head", f"There is nothing to draft with: {evidence.pack.head.reason}")
        if evidence.depth == 0:
            return Decision(False, "nothing_drafted", "draft.depth is 0, so there is no depth to choose.")
        if evidence.law != "exact":
            reason = (
                f"The {evidence.law} law emits another law where a draft was judged, so the depth would show in it."
            )
            return Decision(False, "law", reason)
        return Decision(True, "supported", f"Depths from 0 to {evidence.depth} are timed and chosen cycle by cycle.")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        from mtrun.kernels.depth_choice import DepthChooser

        assert parts is not None
        stock, latch = parts.depth_policy, CostLatch()
        latch.costs, latch.figures = measure(parts, evidence.depth)

        def hot(depth: int, seeded: bool) -> Any:
            if seeded:
                return stock(depth, seeded)
            assert latch.costs is not None
            return CostPolicy(DepthChooser(latch.costs, depth, latch.live), latch.live, latch)

        def undo() -> None:
            parts.depth_policy = stock

        parts.depth_policy = hot
        return Installed(undo, latch, hot, before=stock)

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """The policy that serves, on the measured costs and on two made-up machines: it never falls behind plain
        decoding by more than the bound, returns to drafts that are kept again, and follows from outcomes alone."""
        assert parts is not None
        latch = installed.latch
        assert isinstance(latch, CostLatch)
        measured, figures = latch.costs, latch.figures
        assert measured is not None
        if not all(0 < seconds < float("inf") for name, seconds in figures.items() if name != "read_seconds"):
            return Proof(False, "A cycle's time could not be measured.", figures)
        latch.live = False
        try:
            for relative in (None, STEEP, FLAT):
                latch.costs = measured if relative is None else _made_up(relative, evidence.depth)
                if (found := _fault(parts.depth_policy, latch.costs, evidence.depth, measured)) is not None:
                    return Proof(False, found, figures)
        finally:
            latch.costs, latch.live = measured, True
        widest = measured.drafted["head"][-1] / measured.plain
        reason = f"The loss stays in its bound; a cycle of the deepest drafts takes {widest:.2f} plain cycles."
        return Proof(True, reason, figures)


def measure(parts: EngineParts, depth: int) -> tuple[WidthCosts, dict[str, float]]:
    """Times cycles of 0 to `depth` drafts, drafted by the head and given for nothing, and the head's long read.

    Interleaved: each round times everything once, on a fresh random context and in another order. Returns the medians,
    and the same as figures in seconds.
    """
    from statistics import median

    import numpy as np

    from mtrun.kernels.depth_choice import WidthCosts

    depths = range(1, min(depth, parts.head.max_depth) + 1)
    context = max(1, min(CONTEXT, parts.trunk.context_limit - 2 * (depth + 2) * (depth + 2)))
    drafted, others = [("head", d) for d in depths], [("plain", 0), *(("copied", d) for d in range(1, depth + 1))]
    kinds = [*drafted, *others]
    times: dict[tuple[str, int], list[float]] = {kind: [] for kind in [*kinds, ("long", 1)]}
    for number in range(-1, ROUNDS):  # the first round warms up
        session = parts.probe_session(context, max(number, 0))
        found = {("long", 1): _timed(session, session.drafter, 1)}  # reads the whole prompt's pairs first
        rng = np.random.default_rng(number + 1)
        given = _Given(parts.trunk.xp, rng, parts.trunk.vocab_size, session.drafter)
        # The head's own cycles come first, so that none of them reads what another kind left behind.
        for kind in (group[i] for group in (drafted, others) for i in rng.permutation(len(group))):
            found[kind] = _timed(session, given if kind[0] == "copied" else given.inner, kind[1])
        for kind, seconds in found.items() if number >= 0 else ():
            times[kind].append(seconds)
    medians = {kind: median(values) for kind, values in times.items()}
    read = max(0.0, medians["long", 1] - medians["head", 1]) / max(1, context - 1)
    copied, head = (tuple(medians[source, d] for d in span) for source, span in
                    (("copied", range(1, depth + 1)), ("head", depths)))  # fmt: skip
    figures = {f"{source}_seconds_{drafts}": medians[source, drafts] for source, drafts in kinds if drafts}
    figures = {"plain_seconds": medians["plain", 0], **figures, "read_seconds": read}
    return WidthCosts(medians["plain", 0], {"head": head, "copied": copied}, read), figures


def _timed(session: Any, drafter: Any, depth: int) -> float:
    """Seconds of one cycle with the drafts of `drafter`."""
    session.drafter = drafter
    began = time.perf_counter()
    session.step(depth)
    return time.perf_counter() - began


class _Given:
    """Random drafts for nothing, so that a cycle's forward and judging are timed without a chain. The head is told what
    it would be told."""

    def __init__(self, xp: Any, rng: Any, vocab: int, inner: Any) -> None:
        self.xp, self.rng, self.vocab, self.inner = xp, rng, vocab, inner

    def observe(self, pairs: Any) -> None:
        self.inner.observe(pairs)

    def draft(self, depth: int, how: Any, adjust: Any, uniforms: Any) -> Any:
        from mtrun.kernels.draft import point_masses

        return point_masses(self.rng.integers(0, self.vocab, depth).tolist(), self.xp, "copied")


def _made_up(relative: tuple[float, ...], depth: int) -> WidthCosts:
    from mtrun.kernels.depth_choice import WidthCosts

    costs = tuple(relative[min(d, len(relative) - 1)] + max(0, d - len(relative) + 1) for d in range(depth))
    return WidthCosts(1.0, {"head": costs, "copied": costs})


@dataclass(frozen=True)
class _Spent:
    """The fields of `runtime.decode.depth.Spent`."""

    source: str | None
    drafted: int
    kept: int
    seconds: float


def _fault(policy: Any, costs: WidthCosts, depth: int, measured: WidthCosts) -> str | None:
    """What the policy does wrong on made-up replies; None = nothing."""
    from mtrun.kernels.depth_choice import EARN, LOAN

    turn = CYCLES // 4
    replies = {
        "no draft": lambda cycle, i: False,
        "drafts in turns": lambda cycle, i: cycle // 30 % 2 == 0,
        "the first draft": lambda cycle, i: i == 0,
        "late drafts": lambda cycle, i: cycle >= turn,
    }
    for name, keeps in replies.items():
        depths, tokens, spent = _simulated(policy(depth, False), costs, depth, keeps)
        if not all(s <= (1 + EARN) * t + LOAN + 1e-9 for t, s in zip(tokens, spent, strict=True)):
            return f"Where {name} is kept the loss leaves its bound."
        if _simulated(policy(depth, False), costs, depth, keeps)[0] != depths:
            return f"Where {name} is kept the same reply got other depths from the same costs."
    if costs is measured:
        return None  # what follows would depend on the machine
    gain = max((d + 1) / (seconds / costs.plain) for d, seconds in enumerate(costs.drafted["head"], start=1))
    late = _simulated(policy(depth, False), costs, depth, replies["late drafts"])[0]
    if gain > 1.2 and not any(late[-turn:]):
        return "Drafts that are kept again were not taken up again."
    always, tokens, spent = _simulated(policy(depth, False), costs, depth, lambda cycle, i: True)
    if gain > 1.2 and tokens[-1] / spent[-1] < 1 + (gain - 1) / 2:
        return f"Where every draft is kept the depths ({max(always)} at most) leave most of the gain."
    return None


def _simulated(policy: Any, costs: WidthCosts, depth: int, keeps: Any) -> tuple[list[int], list[int], list[float]]:
    """A reply of CYCLES cycles at the given costs: each depth, and the running tokens and time in plain cycles."""
    depths, tokens, spent, behind = [], [0], [0.0], 0  # behind: tokens that the head has not read
    for cycle in range(CYCLES):
        chosen = policy.choose("head", depth)
        kept = next((i for i in range(chosen) if not keeps(cycle, i)), chosen)
        seconds = costs.drafted["head"][chosen - 1] if chosen else costs.plain
        policy.observe(_Spent("head" if chosen else None, chosen, kept, seconds))
        depths.append(chosen)
        tokens.append(tokens[-1] + kept + 1)
        late, behind = (behind, 0) if chosen else (0, behind + kept + 1)
        spent.append(spent[-1] + (seconds + late * costs.read) / costs.plain)
    return depths, tokens, spent


LANE = CostDepth()
