"""The parts of an engine that lanes may replace: built stock, swapped by a lane's `install`, put back by its `undo`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mtrun.kernels.arrays import Array, of_module
from mtrun.kernels.draft import DraftChain, DraftLogits, DraftRows, DraftScorer, draw_token, scattered_rows, stack_rows
from mtrun.kernels.rows import RowFilter, RowsFilter, filter_rows
from mtrun.runtime.acceptance.law import AcceptanceLaw
from mtrun.runtime.decode.depth import DepthPolicies, constant_depth
from mtrun.runtime.decode.draft import Drafter, Drafting, HeadAlone, MtpDrafter
from mtrun.runtime.decode.keys import Keys
from mtrun.runtime.decode.penalties import Adjuster
from mtrun.runtime.decode.session import Session
from mtrun.runtime.decode.verify import Verify, VerifyCycle, row_by_row, uniforms
from mtrun.runtime.packs.contract import Caches, Head, Trunk
from mtrun.runtime.requests import Sampling


@dataclass
class Parts:
    """Implements `lanes.contract.EngineParts`. Everything is read anew for each request, never captured at import."""

    trunk: Trunk
    head: Head | None  # None: the pack has no usable head
    draft_ids: Array | None  # [K] int32 array: the pack's frequency-ranked draft vocabulary, None = not shipped
    cache_factory: Callable[[], Caches]  # a new list of trunk caches, one a layer
    draft_scorer: DraftScorer  # head state [1, H] -> DraftLogits; stock scores the whole vocabulary
    draft_rows: DraftRows  # DraftLogits -> one filtered row; stock builds it at full width
    draft_chain: DraftChain | None  # D drafts in one call; stock has none and goes step by step
    target_rows: RowsFilter  # logits -> filtered rows of the verifier
    verify: Verify  # VerifyCycle -> Outcome; stock goes row by row
    law: AcceptanceLaw
    depth_policy: DepthPolicies  # (deepest depth, seeded) -> a request's policy; stock is constant
    drafting: Drafting  # puts other sources of drafts around the head's; stock has none

    @property
    def max_depth(self) -> int:
        """The deepest a cycle may draft; 0 = nothing can be drafted."""
        return self.drafting.max_depth(0 if self.head is None else self.head.max_depth)

    def drafter(self) -> Drafter | None:
        """A fresh drafter with the current scorer and rows. None where nothing can be drafted."""
        return self.drafting.around(self.head_drafter())

    def head_drafter(self) -> Drafter | None:
        """The head's own drafter, with nothing around it. None where there is no head."""
        if self.head is None:
            return None
        return MtpDrafter(self.trunk, self.head, self.draft_scorer, self.draft_rows, self.draft_chain)

    def probe_session(self, context: int, seed: int) -> Session:
        """A session that has read a random prompt of `context` tokens and drafts with the head alone, for lanes that
        time cycles. 1 <= context <= the trunk's limit.
        """
        prompt = np.random.default_rng(seed).integers(0, self.trunk.vocab_size, context).tolist()
        how = RowFilter(1.0, 0.95, 20)
        session = Session(
            trunk=self.trunk,
            caches=self.cache_factory(),
            drafter=self.head_drafter(),
            verify=self.verify,
            law=self.law,
            how=how,
            draft_how=how,
            adjust=Adjuster(Sampling(), prompt, self.trunk.vocab_size),
            keys=Keys(seed),
            target_rows=self.target_rows,
        )
        session.prefill(prompt, None)
        return session

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
            target_rows=self.target_rows,
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
        draft_chain=None,
        target_rows=filter_rows,
        verify=row_by_row,
        law=law,
        depth_policy=constant_depth,
        drafting=HeadAlone(),
    )
