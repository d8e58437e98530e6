"""What an acceptance law is: the block of rows it judges and the judgement it returns.

Notation: p target row, q draft row, v ~ q the drafted token, D positions, U slots that hold the union
of both supports. Arrays are MLX arrays (float64 on CPU, float32 on Metal, nothing synchronised here) or numpy arrays
(float64); a law answers in the kind it was given, and on equal rows the two differ by the last bits of a sum at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from mtrun.kernels.arrays import cast, namespace, pick


@dataclass(frozen=True)
class Block:
    """D drafted positions on shared slots. `p[i]` and `q[i]` each sum to 1; `q[i, drafted[i]] > 0`."""

    p: Any  # [D, U] target law of each position, filtered
    q: Any  # [D, U] the law that the drafted token was really drawn from
    drafted: Any  # [D] int32 slot of the drafted token v
    coins: Any  # [D] uniforms in [0, 1)

    def at(self, rows: Any) -> Any:
        """[D] values of rows [D, U] at the drafted slots."""
        return pick(rows, self.drafted)


@dataclass(frozen=True)
class Judgement:
    """What a law says of a block. Positions past the first rejection carry values that nobody may count."""

    kept: Any  # [] int32, how many leading drafts are committed
    deferred: Any  # [D] bool, the position was decided by the target's own law (a coin, or a failed test)
    replacement: Any  # [D, U] unnormalised weights of the token that replaces draft i if i is the first rejected


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


def leading(keep: Any) -> Any:
    """[] int32: how many leading entries of keep [D] bool are true."""
    xp = namespace(keep)
    return cast(xp.sum(xp.cumprod(cast(keep, xp.int32), axis=0)), xp.int32)
