"""Randomness of one request: every uniform is a pure function of (seed, use, cycle), so nothing is shared or frozen.

Counter-based Philox (Salmon et al., SC 2011) through numpy. No generator has state between calls, streams of different
uses never overlap, and a law that ignores its coins does not shift anybody else's numbers.
"""

from __future__ import annotations

import secrets
from enum import IntEnum

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
    """The uniforms of one request."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def uniforms(self, use: Use, cycle: int, count: int) -> np.ndarray:
        """[count] float64 in [0, 1), each representable below 1 in float32 too."""
        key = np.array([self.seed % 2**64, int(use)], dtype=np.uint64)
        bits = np.random.Philox(key=key, counter=np.array([0, cycle, 0, 0], dtype=np.uint64))
        values = np.random.Generator(bits).random(count)
        return np.minimum(values, 1.0 - 2.0**-24)
