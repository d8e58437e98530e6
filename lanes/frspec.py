"""Lane: the draft head scores a frequency-ranked subset of the vocabulary that the pack ships (arXiv 2502.14856).

Any draft law is judged against the full target row, so the emitted distribution is untouched; tokens outside the subset
are just never drafted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage

TOLERANCE = 1e-3  # logits; the same products, summed in another order


@dataclass(frozen=True)
class FrSpec:
    """The lane: replaces `parts.draft_scorer`."""

    name: str = "frspec"
    summary: str = "draft head over the pack's frequency-ranked vocabulary subset instead of the whole vocabulary"
    exactness: Exactness = Exactness.EXACT_LAW
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    auto: bool = True

    def supports(self, evidence: Evidence) -> Decision:
        pack = evidence.pack
        if not pack.head.ok:
            return Decision(False, "no_head", f"There is nothing to draft with: {pack.head.reason}")
        if evidence.depth == 0:
            return Decision(False, "nothing_drafted", "draft.depth is 0, so nothing is drafted.")
        if pack.draft_vocab_size is None:
            return Decision(False, "no_draft_vocabulary", "The pack ships no ranked draft vocabulary.")
        share = pack.draft_vocab_size / pack.vocab_size
        return Decision(True, "supported", f"The pack ranks {pack.draft_vocab_size} ids, {share:.0%} of all.")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        from mtrun.kernels.arrays import evaluate
        from mtrun.kernels.draft import trimmed_scorer

        assert parts is not None
        stock, latch = parts.draft_scorer, Latch()
        rows = parts.trunk.projection_rows(parts.draft_ids)  # [K, H]
        evaluate(rows)
        score = trimmed_scorer(rows, parts.draft_ids)

        def hot(state: Any) -> Any:
            latch.hit()
            return score(state)

        def undo() -> None:
            parts.draft_scorer = stock

        parts.draft_scorer = hot
        return Installed(undo, latch, hot, before=stock)

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """The subset's logits equal the full head's at the same ids, for random states."""
        import numpy as np

        from mtrun.kernels.arrays import of_module

        assert parts is not None
        assert installed.hot is not None
        assert installed.before is not None
        states = np.random.default_rng(0).normal(0.0, 1.0, (4, 1, parts.trunk.hidden_size)).astype(np.float32)
        errors = []
        for state in (of_module(each, parts.trunk.xp) for each in states):
            ours, full = installed.hot(state), np.array(installed.before(state).logits)
            scale = max(float(np.abs(full).max()), 1.0)
            errors.append(float(np.abs(np.array(ours.logits) - full[:, np.array(ours.ids)]).max()) / scale)
        error = float(np.max(errors))  # NaN stays NaN, and then the test below fails
        figures = {"max_relative_error": error, "draft_vocabulary": float(parts.draft_ids.size)}
        if not error <= TOLERANCE:
            return Proof(False, f"Subset logits differ from the full head's by {error:.1e} of the largest.", figures)
        return Proof(True, f"Subset logits equal the full head's to {error:.1e} of the largest.", figures)


LANE = FrSpec()
