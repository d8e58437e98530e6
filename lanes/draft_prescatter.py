"""Lane: a draft row stays on the draft vocabulary's own slots; the full-vocabulary row is never built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage


@dataclass(frozen=True)
class DraftPrescatter:
    """The lane: replaces `parts.draft_rows`."""

    name: str = "draft_prescatter"
    summary: str = "draft rows stay compact (token ids and probabilities) instead of being scattered to the vocabulary"
    exactness: Exactness = Exactness.EXACT
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ("frspec",)
    excludes: tuple[str, ...] = ()
    auto: bool = True

    def supports(self, evidence: Evidence) -> Decision:
        if not evidence.pack.head.ok or evidence.depth == 0:
            return Decision(False, "nothing_drafted", "Nothing is drafted, so there is no draft row.")
        if evidence.pack.draft_vocab_size is None:
            return Decision(False, "no_draft_vocabulary", "Without a draft vocabulary a row is full width anyway.")
        return Decision(True, "supported", "Draft rows live on a vocabulary subset.")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        from mtrun.kernels.draft import compact_rows

        assert parts is not None
        stock, latch = parts.draft_rows, Latch()

        def hot(draft: Any, how: Any) -> Any:
            latch.hit()
            return compact_rows(draft, how)

        def undo() -> None:
            parts.draft_rows = stock

        parts.draft_rows = hot
        return Installed(undo, latch, hot, before=stock)

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """The same probabilities, bit for bit, as the scattered row, under filters of each kind."""
        import numpy as np

        from mtrun.kernels.arrays import of_module
        from mtrun.kernels.draft import DraftLogits
        from mtrun.kernels.rows import RowFilter

        assert parts is not None
        assert installed.hot is not None
        assert installed.before is not None
        rng = np.random.default_rng(0)
        for how in (RowFilter(1.0, 0.95, 20), RowFilter(0.7, 0.9, 0), RowFilter(1.0), RowFilter(0.0)):
            logits = rng.normal(0.0, 3.0, (1, parts.draft_ids.size)).astype(np.float32)
            draft = DraftLogits(of_module(logits, parts.trunk.xp), parts.draft_ids)
            ours, stock = _dense(installed.hot(draft, how), parts), _dense(installed.before(draft, how), parts)
            if not np.array_equal(ours, stock):
                return Proof(False, f"A compact row differs from the scattered one under {how}.")
        return Proof(True, "Compact rows equal scattered rows bit for bit.", {"filters": 4.0})


def _dense(rows: Any, parts: EngineParts) -> Any:
    """[1, V] numpy."""
    import numpy as np

    from mtrun.kernels.arrays import put

    probs = np.array(rows.probs)
    if rows.ids is None:
        return probs
    return put(np.zeros((1, parts.trunk.vocab_size), dtype=probs.dtype), np.array(rows.ids), probs)


LANE = DraftPrescatter()
