"""How many drafts a cycle gets: the seam `Parts.depth_policy`, and the stock policy that always says the same.

A policy may look at committed tokens, at what became of earlier drafts and at the time they took, never at the drafts
of the cycle it decides: what is already past is independent of this cycle's uniforms, so each cycle emits the target's
law whatever depth it got, and the reply does too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Spent:
    """What became of one cycle."""

    source: str | None  # where its drafts came from: a `Drafter.source`
    drafted: int  # 0 = plain
    kept: int
    seconds: float  # wall time of the whole cycle


class DepthPolicy(Protocol):
    """The depths of one request."""

    def choose(self, source: str | None, room: int) -> int:
        """Drafts of the next cycle, 0 to room (>= 0), if they come from `source`. None = there is no drafter."""
        ...

    def observe(self, spent: Spent) -> None:
        """What the cycle came to; called once after each cycle that `choose` decided."""
        ...

    def notes(self) -> tuple[str, ...]:
        """What the reply should say of itself, in fixed sentences: they are counted by their text."""
        ...


DepthPolicies = Callable[[int, bool], DepthPolicy]  # (deepest depth, the request gave a seed) -> a fresh policy


@dataclass(frozen=True)
class ConstantDepth:
    """The stock policy: the request's depth, cut to the room."""

    depth: int

    def choose(self, source: str | None, room: int) -> int:
        return min(self.depth, room)

    def observe(self, spent: Spent) -> None:
        pass

    def notes(self) -> tuple[str, ...]:
        return ()


def constant_depth(depth: int, seeded: bool) -> DepthPolicy:
    """The stock `Parts.depth_policy`."""
    return ConstantDepth(depth)
