"""The parts of an engine that lanes may replace: built stock, swapped by a lane's `install`, put back by its `undo`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mtrun.kernels.arrays import Array, of_module
from mtrun.kernels.draft import DraftLogits, DraftRows, DraftScorer, draw_token, scattered_rows, stack_rows
from mtrun.kernels.rows import RowFilter
from mtrun.runtime.acceptance.law import AcceptanceLaw
from mtrun.runtime.decode.draft import Drafter, MtpDrafter
from mtrun.runtime.decode.verify import Verify, VerifyCycle, row_by_row, uniforms
from mtrun.runtime.packs.contract import Caches, Head, Trunk


@dataclass
class Parts:
    """Implements `lanes.contract.EngineParts`. Everything is read anew for each request, never captured at import."""

    trunk: Trunk
    head: Head | None  # None: the pack has no usable head, only depth 0 is possible
    draft_ids: Array | None  # [K] int32 array: the pack's frequency-ranked draft vocabulary, None = not shipped
    cache_factory: Callable[[], Caches]  # a new list of trunk caches, one a layer
    draft_scorer: DraftScorer  # head state [1, H] -> DraftLogits; stock scores the whole vocabulary
    draft_rows: DraftRows  # DraftLogits -> one filtered row; stock builds it at full width
    verify: Verify  # VerifyCycle -> Outcome; stock goes row by row
    law: AcceptanceLaw

    def drafter(self) -> Drafter:
        """A fresh drafter with the current scorer and rows. Only where there is a head."""
        assert self.head is not None
        return MtpDrafter(self.trunk, self.head, self.draft_scorer, self.draft_rows)

    def probe_cycle(self, depth: int, how: RowFilter, seed: int) -> VerifyCycle:
        """A cycle on random rows of the real width, for lanes that prove a verifier or a draft row builder.

        Half the drafts come from rows near the target's, so that a probe sees both keeps and rejections.
        """
        xp = self.trunk.xp
        rng = np.random.default_rng(seed)
        target = rng.normal(0.0, 3.0, (depth + 1, self.trunk.vocab_size)).astype(np.float32)
        near = target[:depth] + rng.normal(0.0, 0.5, (depth, self.trunk.vocab_size)).astype(np.float32)
        rows = [self.draft_rows(DraftLogits(of_module(row[None], xp), None), how) for row in near]
        draws = [uniforms(rng.random(1), xp) for _ in range(depth + 2)]
        tokens = [draw_token(row, u) for row, u in zip(rows, draws, strict=False)]
        return VerifyCycle(
            logits=of_module(target, xp),
            drafts=xp.concatenate(tokens),
            draft_rows=stack_rows(rows),
            how=how,
            law=self.law,
            coins=uniforms(rng.random(depth), xp),
            residual_uniform=draws[depth],
            bonus_uniform=draws[depth + 1],
        )


def stock_parts(trunk: Trunk, head: Head | None, draft_ids: Array | None, law: AcceptanceLaw) -> Parts:
    """An engine's parts with no lane installed."""
    return Parts(
        trunk=trunk,
        head=head,
        draft_ids=None if draft_ids is None else of_module(draft_ids, trunk.xp),
        cache_factory=trunk.new_caches,
        draft_scorer=lambda state: DraftLogits(trunk.project(state), None),
        draft_rows=scattered_rows(trunk.vocab_size),
        verify=row_by_row,
        law=law,
    )
