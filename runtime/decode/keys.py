"""Randomness of one request: every uniform is a pure function of (seed, use, cycle), so nothing is shared or frozen.

Counter-based Philox (Salmon et al., SC 2011) through numpy. No generator has state between calls, streams of different
uses never overlap, and a law that ignores its coins does not shift anybody else's numbers.
"""

from __future__ import annotations

import secrets
from enum import IntEnum
from typing import Any

import numpy as np


class Use(IntEnum):
    """What a uniform is for."""

    DRAFT = 0
    COIN = 1
    RESIDUAL = 2
    BONUS = 3


def fresh_seed() -> int:
    """A seed for a request that gave none, from the operating system; reported with the reply so it can be repeated."""
    return secrets.randbits(53)


class Keys:
    """The uniforms of one request. Belongs to one thread at a time."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        # One generator whose whole state is set before each use: building a new one would cost ten times as much.
        self._bits = np.random.Philox(key=np.array([seed % 2**64, 0], dtype=np.uint64))
        self._state: Any = self._bits.state

    def uniforms(self, use: Use, cycle: int, count: int) -> np.ndarray:
        """[count] float64 in [0, 1), each representable below 1 in float32 too."""
        self._state["state"]["key"][1] = use
        self._state["state"]["counter"][:] = (0, cycle, 0, 0)
        self._bits.state = self._state
        values = (self._bits.random_raw(count) >> np.uint64(11)) * 2.0**-53
        return np.minimum(values, 1.0 - 2.0**-24)
