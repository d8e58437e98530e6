"""What an acceptance law is: the block of rows it judges and the judgement it returns.

Notation: p target row, q draft row, v ~ q the drafted token, D positions, U slots that hold the union
of both supports. Arrays are MLX arrays in float64 on CPU and float32 on Metal; nothing is synchronised here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx


@dataclass(frozen=True)
class Block:
    """D drafted positions on shared slots. `p[i]` and `q[i]` each sum to 1; `q[i, drafted[i]] > 0`."""

    p: mx.array  # [D, U] target law of each position, filtered
    q: mx.array  # [D, U] the law that the drafted token was really drawn from
    drafted: mx.array  # [D] int32 slot of the drafted token v
    coins: mx.array  # [D] uniforms in [0, 1)

    def at(self, rows: mx.array) -> mx.array:
        """[D] values of rows [D, U] at the drafted slots."""
        return mx.take_along_axis(rows, self.drafted[:, None], axis=-1)[:, 0]


@dataclass(frozen=True)
class Judgement:
    """What a law says of a block. Positions past the first rejection carry values that nobody may count."""

    kept: mx.array  # [] int32, how many leading drafts are committed
    deferred: mx.array  # [D] bool, the position was decided by the target's own law (a coin, or a failed test)
    replacement: mx.array  # [D, U] unnormalised weights of the token that replaces draft i if i is the first rejected


class AcceptanceLaw(Protocol):
    """One acceptance law with its parameters bound. Members are read-only, so that frozen dataclasses satisfy it."""

    @property
    def name(self) -> str: ...  # "exact", "typical", "cascade", ...

    @property
    def rule(self) -> str | None: ...  # the cascade rule, None elsewhere

    @property
    def parameters(self) -> dict[str, float]: ...  # the knobs in force, e.g. {"alpha": 0.95}

    @property
    def distribution_exact(self) -> bool: ...  # the emitted law is the target's

    @property
    def joint(self) -> bool: ...  # decides all positions together: `judge` must see every row at once

    @property
    def composes_with_block(self) -> bool: ...  # block verification may replace its coins

    def judge(self, block: Block) -> Judgement: ...


def leading(keep: mx.array) -> mx.array:
    """[] int32: how many leading entries of keep [D] bool are true."""
    return mx.sum(mx.cumprod(keep.astype(mx.int32), axis=0)).astype(mx.int32)
