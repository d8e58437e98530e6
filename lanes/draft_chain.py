"""Lane: all drafts of a cycle are drawn in one native call: head, scorer, filter and draw, depth after depth.

A request whose penalties or bias change with every draft goes step by step as before.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage

ROUNDS = 3  # probes of each filter and depth
PAIRS = 3  # verified pairs that the head has read before a chain
TOLERANCE = 1e-3  # of a probability: the chain scores 16-bit activations, a step dense ones
EDGE = 0.02  # of a weight: a token so near to where a filter cuts may stand on either side of it


@dataclass(frozen=True)
class DraftChain:
    """The lane: replaces `parts.draft_chain`."""

    name: str = "draft_chain"
    summary: str = "CPU: the whole chain of drafts in one native call"
    exactness: Exactness = Exactness.EXACT_LAW
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ("cpu_layer",)
    excludes: tuple[str, ...] = ()
    auto: bool = True

    def supports(self, evidence: Evidence) -> Decision:
        if not evidence.pack.head.ok:
            return Decision(False, "no_head", f"There is nothing to draft with: {evidence.pack.head.reason}")
        if evidence.depth == 0:
            return Decision(False, "nothing_drafted", "draft.depth is 0, so nothing is drafted.")
        return Decision(True, "supported", "The native head drafts whole chains.")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        import numpy as np

        from mtrun.kernels.draft import Drafted
        from mtrun.kernels.rows import Rows

        assert parts is not None
        stock, head, latch = parts.draft_chain, parts.head, Latch()
        # Whether drafts come from the ranked subset is lane frspec's to say, which stands before this one.
        trimmed = parts.draft_scorer(np.zeros((1, parts.trunk.hidden_size), dtype=np.float32)).ids is not None

        def hot(state: Any, caches: Any, depth: int, how: Any, uniforms: Any) -> Any:
            latch.hit()
            tokens, ids, probs = head.chain(state, caches, depth, how, uniforms, trimmed)
            return Drafted(tokens, Rows(ids, probs))

        def undo() -> None:
            parts.draft_chain = stock

        parts.draft_chain = hot
        return Installed(undo, latch, hot, before=stock, serves_for=("frspec", "draft_prescatter"))

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """Each draft is drawn at its own uniform from the row that scorer and filter give at the state the chain had
        there, up to tokens at the very edge of the filter, and the chain leaves its own rows in the cache and no other.
        """
        import numpy as np

        from mtrun.kernels.rows import RowFilter

        assert parts is not None
        filters = (RowFilter(1.0, 0.95, 20), RowFilter(0.7, 0.9, 0), RowFilter(1.3, 1.0, 50, 0.1), RowFilter(0.0))
        rng, worst, probes = np.random.default_rng(0), 0.0, 0
        for depth, how, _ in itertools.product(sorted({1, evidence.depth}), filters, range(ROUNDS)):
            error, problem = _probe(parts, installed.hot, how, depth, rng)
            if problem is not None:
                return Proof(False, f"A chain of {depth} under {how} {problem}.")
            worst, probes = max(worst, error), probes + 1
        figures = {"max_error": worst, "probes": float(probes)}
        if not worst <= TOLERANCE:
            return Proof(False, f"Draft rows differ from step-by-step rows by {worst:.1e}.", figures)
        return Proof(True, f"Draft rows agree with step-by-step rows to {worst:.1e}.", figures)


def _probe(parts: EngineParts, chain: Any, how: Any, depth: int, rng: Any) -> tuple[float, str | None]:
    """Largest difference between the chain's rows and the rows of the steps that lead to its tokens; what is wrong."""
    import numpy as np

    from mtrun.kernels.draft import draw_token

    head, trunk = parts.head, parts.trunk
    pairs = rng.normal(0.0, 1.0, (2, 1, PAIRS + 1, trunk.hidden_size)).astype(np.float32)
    hidden, embedded = pairs[:, :, :PAIRS]
    caches = [head.new_caches(), head.new_caches()]
    states = [head.forward(hidden, embedded, each, 0)[:, -1:] for each in caches]
    uniforms = rng.random(depth)
    drafted = chain(states[0][0, 0], caches[0], depth, how, uniforms)
    state, worst = states[1], 0.0
    for step, token in enumerate(drafted.tokens):
        row = drafted.rows[step : step + 1]
        if token != draw_token(row, uniforms[step : step + 1])[0]:
            return worst, "drafts a token that its row does not hold at the uniform"
        scores = parts.draft_scorer(state[0])

        def rows_of(how: Any, scores: Any = scores) -> Any:
            return _dense(parts.draft_rows(scores, how), trunk.vocab_size)

        error = _error(_dense(row, trunk.vocab_size), rows_of, how)
        if error is None:
            return worst, "keeps tokens in a row that the filter removes, or removes some that it keeps"
        worst = float(np.max([worst, error]))  # NaN stays NaN
        if step + 1 < depth:
            state = head.forward(state, trunk.embed(np.array([[token]], dtype=np.int32)), caches[1], step + 1)
    if len(drafted.tokens) != depth or any(cache.offset != PAIRS + depth - 1 for cache in caches[0]):
        return worst, f"drafts {len(drafted.tokens)} and leaves {caches[0][0].offset - PAIRS} rows in the cache"
    for cache in (*caches[0], *caches[1]):
        cache.trim(depth - 1)
    after = [head.forward(pairs[0][:, PAIRS:], pairs[1][:, PAIRS:], each, 0) for each in caches]
    return worst, None if np.array_equal(*after) else "changes what the head has read"


def _error(row: Any, rows_of: Any, how: Any) -> float | None:
    """Largest difference of a row [V] to the step's, restricted to what the row keeps; None where it keeps too much or
    too little: what filters a hair tighter and a hair looser keep bounds it from both sides."""
    import numpy as np

    from mtrun.kernels.rows import RowFilter

    kept = ~(row == 0)  # NaN is kept
    whole = rows_of(RowFilter(how.temperature or 1.0))
    if how.greedy:
        return None if kept.sum() != 1 or whole[kept][0] < (1 - EDGE) * whole.max() else float(abs(row[kept][0] - 1))
    tight, loose = (rows_of(_nudged(how, whole, way)) > 0 for way in (-1, 1))
    if (tight & ~kept).any() or (kept & ~loose).any():
        return None
    wanted = np.where(kept, whole, 0)
    return float(np.max(np.abs(row - wanted / wanted.sum())))


def _nudged(how: Any, whole: Any, way: int) -> Any:
    """The filter, a hair looser (`way` 1) or tighter (-1), for a row of weights `whole` [V]."""
    from dataclasses import replace

    import numpy as np

    top_k = how.top_k
    if 0 < top_k < len(whole):
        last = np.partition(whole, -top_k)[-top_k] * (1 - way * EDGE)
        near = int((whole >= last).sum()) if way > 0 else int((whole > last).sum())
        top_k = max(top_k, near) if way > 0 else max(1, min(top_k, near))
    top_p = how.top_p if how.top_p >= 1 else min(1.0, how.top_p + way * TOLERANCE)
    return replace(how, top_p=top_p, top_k=top_k, min_p=how.min_p * (1 - way * EDGE))


def _dense(rows: Any, vocab: int) -> Any:
    """One row as probabilities [V]."""
    import numpy as np

    out = np.zeros(vocab)
    out[slice(None) if rows.ids is None else rows.ids[0]] = rows.probs[0]
    return out


LANE = DraftChain()
