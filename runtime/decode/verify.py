"""Judging one cycle's drafts against the verified rows: what is kept, and the token that follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mtrun.kernels.arrays import accumulator, evaluate, pick
from mtrun.kernels.draft import draw_token, stack_rows
from mtrun.kernels.host import flags, floats, integer, integers
from mtrun.kernels.rows import RowFilter, Rows, RowsFilter, draw, filter_rows
from mtrun.runtime.acceptance.align import align, divergence
from mtrun.runtime.acceptance.law import AcceptanceLaw, Block


@dataclass(frozen=True)
class Decisions:
    """Outcome of judging positions [lo, hi) of a cycle, N = hi - lo; lazy where arrays are MLX's."""

    kept: Any  # [] int32 leading drafts kept among them
    deferred: Any  # [N] bool
    divergence: Any  # [N] D_TV(p, q)
    drafted_mass: Any  # [N] q at each drafted token; 0 is a broken contract
    replacement: Any  # [N] int32 the token that replaces draft i if i is the first rejected


@dataclass(frozen=True)
class Outcome:
    """A cycle's outcome on the host."""

    kept: int  # k of D drafts
    token: int  # the correction after a rejection, the bonus token otherwise
    drafts: list[int]  # [D]
    deferred: list[bool]  # entries of reached positions are valid
    divergence: list[float]  # likewise


@dataclass(frozen=True)
class VerifyCycle:
    """What a verifier is given: D drafts, the D + 1 target rows that saw them, the law, and this cycle's uniforms.

    All arrays are of one module, and so is everything computed here.
    """

    logits: Any  # [D + 1, V] float32, penalised and biased
    drafts: Any  # [D] int32
    draft_rows: Rows | None  # D rows the drafts were drawn from; None when D = 0
    how: RowFilter
    law: AcceptanceLaw
    coins: Any  # [D]
    residual_uniform: Any  # [1]
    bonus_uniform: Any  # [1]
    target_rows: RowsFilter = filter_rows

    @property
    def depth(self) -> int:
        return self.drafts.shape[0]

    def rows(self, lo: int, hi: int) -> Rows:
        """Filtered target rows lo..hi-1 (lazy)."""
        return self.target_rows(self.logits[lo:hi], self.how)

    def judge(self, target: Rows, lo: int, hi: int) -> Decisions:
        """Judges drafts lo..hi-1 against their target rows (lazy)."""
        assert self.draft_rows is not None
        aligned = align(target, self.draft_rows[lo:hi], self.drafts[lo:hi])
        verdict = self.law.judge(aligned.block(self.coins[lo:hi]))
        slots = draw(verdict.replacement, self.residual_uniform)
        if aligned.ids is not None:
            slots = pick(aligned.ids, slots)
        return Decisions(verdict.kept, verdict.deferred, divergence(aligned.p, aligned.q), aligned.drafted_mass, slots)

    def block(self) -> Block:
        """All drafts against their target rows, as a law is given them (lazy). D >= 1."""
        assert self.draft_rows is not None
        return align(self.rows(0, self.depth), self.draft_rows, self.drafts).block(self.coins)

    def bonus(self, target: Rows) -> Any:
        """[1] int32 token drawn from the one row after the last draft (lazy)."""
        return draw_token(target, self.bonus_uniform)

    def outcome(self, kept: int, token: int, deferred: list[bool], values: list[float], masses: list[float]) -> Outcome:
        """The host's view of a decided cycle. Raises RuntimeError when a draft had probability 0 under its own row."""
        if not all(mass > 0 for mass in masses):
            raise RuntimeError("a drafted token has probability 0 under the row it was said to be drawn from")
        return Outcome(kept, token, integers(self.drafts), deferred, values)


Verify = Callable[[VerifyCycle], Outcome]


def row_by_row(cycle: VerifyCycle) -> Outcome:
    """The stock verifier: one row at a time, synchronised each, stopping at the first rejection.

    A joint law needs every row before it can decide anything.
    """
    if cycle.law.joint and cycle.depth:
        parts = [cycle.rows(i, i + 1) for i in range(cycle.depth)]
        for part in parts:
            evaluate(part.probs)
        return settle(cycle, [cycle.judge(stack_rows(parts), 0, cycle.depth)])
    decided: list[Decisions] = []
    for i in range(cycle.depth):
        decided.append(cycle.judge(cycle.rows(i, i + 1), i, i + 1))
        if decided[-1].kept.item() == 0:
            break
    return settle(cycle, decided)


def settle(cycle: VerifyCycle, decided: list[Decisions]) -> Outcome:
    """Brings decisions over consecutive positions to the host; draws the bonus row if every draft was kept."""
    for each in decided:
        evaluate(each.kept, each.deferred, each.divergence, each.drafted_mass, each.replacement)
    kept = sum(integer(each.kept) for each in decided)
    replacements = [token for each in decided for token in integers(each.replacement)]
    # The bonus row is filtered only where it is needed.
    token = replacements[kept] if kept < cycle.depth else integer(cycle.bonus(cycle.rows(cycle.depth, cycle.depth + 1)))
    return cycle.outcome(
        kept,
        token,
        deferred=[flag for each in decided for flag in flags(each.deferred)],
        values=[value for each in decided for value in floats(each.divergence)],
        masses=[mass for each in decided for mass in floats(each.drafted_mass)],
    )


def uniforms(values: np.ndarray, xp: Any = mx) -> Any:
    """Host uniforms [N] float64 as an array of module `xp` in its accumulation dtype."""
    return values if xp is np else xp.array(values, dtype=accumulator(xp))
