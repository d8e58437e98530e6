"""Lane: all drafts of a cycle are drawn in one native call: head, scorer, filter and draw, depth after depth.

A request whose penalties or bias change with every draft goes step by step as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage

PROBES = 8
TOLERANCE = 1e-4  # of a probability: scores of the trimmed vocabulary are summed in another order


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
        return Installed(undo, latch, hot, before=stock)

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """Each draft's row equals the one that scorer and filter give at the state the chain had there."""
        import numpy as np

        from mtrun.kernels.rows import RowFilter

        assert parts is not None
        filters = (RowFilter(1.0, 0.95, 20), RowFilter(0.7, 0.9, 0), RowFilter(0.0))
        rng, worst = np.random.default_rng(0), 0.0
        for probe in range(PROBES):
            how = filters[probe % len(filters)]
            error = _chain_error(parts, installed.hot, how, evidence.depth, rng)
            if error is None:
                return Proof(False, f"A chain under {how} drafts a token that its own row does not hold.")
            worst = max(worst, error)
        figures = {"max_error": worst, "probes": float(PROBES)}
        if not worst <= TOLERANCE:
            return Proof(False, f"Draft rows differ from step-by-step rows by {worst:.1e}.", figures)
        return Proof(True, f"Draft rows agree with step-by-step rows to {worst:.1e}.", figures)


def _chain_error(parts: EngineParts, chain: Any, how: Any, depth: int, rng: Any) -> float | None:
    """Largest difference between the chain's rows and the rows of the steps that lead to its tokens."""
    import numpy as np

    head, trunk = parts.head, parts.trunk
    pair = rng.normal(0.0, 1.0, (2, 1, 3, trunk.hidden_size)).astype(np.float32)
    caches = [head.new_caches(), head.new_caches()]
    states = [head.forward(pair[0], pair[1], each, 0)[:, -1:] for each in caches]
    drafted = chain(states[0][0, 0], caches[0], depth, how, rng.random(depth))
    state, worst = states[1], 0.0
    for step, token in enumerate(drafted.tokens):
        ours = _dense(drafted.rows[step : step + 1], trunk.vocab_size)
        wanted = _dense(parts.draft_rows(parts.draft_scorer(state[0]), how), trunk.vocab_size)
        if not ours[token] > 0:
            return None
        worst = max(worst, float(np.max(np.abs(ours - wanted))))
        if step + 1 < depth:
            state = head.forward(state, trunk.embed(np.array([[token]], dtype=np.int32)), caches[1], step + 1)
    return worst


def _dense(rows: Any, vocab: int) -> Any:
    """One row as probabilities [V]."""
    import numpy as np

    out = np.zeros(vocab)
    out[slice(None) if rows.ids is None else rows.ids[0]] = rows.probs[0]
    return out


LANE = DraftChain()
