"""Statistics of paired right and wrong: two runs answered the same tasks, and most tasks tell them nothing apart.

Differences are new - old, one a task: the mean over the seeds that both runs have. The task is the unit, since answers
to one task under several seeds hang together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist, fmean

from mtrun.runtime.measure.stats import LEVEL, Interval, t_interval

DRAWS = 20_000  # of the sign-flip test where it is too wide to be counted out
POWER = 0.8
METHOD = (
    "Student t over tasks of the mean difference over seeds, after one task won and one lost are added "
    "(Bonett and Price 2012), so that few differing tasks are not read as none"
)
_WIDEST = 200_000  # sum of whole-number differences up to which every sign pattern is counted


@dataclass(frozen=True)
class McNemar:
    """McNemar's test of two paired shares: a two-sided binomial on the pairs that differ."""

    only_old: int  # pairs that the old run alone has right
    only_new: int
    exact: float  # p value
    mid: float  # mid-p: half the weight of the observed table


def mcnemar(only_old: int, only_new: int) -> McNemar:
    """Both counts >= 0. Without a differing pair nothing speaks against equality: both p values are 1."""
    n, fewer = only_old + only_new, min(only_old, only_new)
    ways = tail = 1  # C(n, k) and its sum up to k
    for k in range(fewer):
        ways = ways * (n - k) // (k + 1)
        tail += ways
    exact, point = Fraction(2 * tail, 2**n), Fraction(ways, 2**n)
    return McNemar(only_old, only_new, float(min(exact, 1)), float(min(exact - point, 1)))


@dataclass(frozen=True)
class SignFlip:
    """The share of sign patterns whose sum is at least as far from 0: valid for any differences that are symmetric."""

    p: float
    method: str  # exact, or how many draws


def sign_flip(differences: Sequence[Fraction], draws: int = DRAWS, seed: int = 0) -> SignFlip:
    """Two-sided permutation test of differences, one a task. With one seed this is McNemar's exact test."""
    scale = math.lcm(*(one.denominator for one in differences))
    whole = [abs(int(one * scale)) for one in differences if one]
    observed = abs(int(sum(differences) * scale))
    if sum(whole) <= _WIDEST:
        return SignFlip(_counted(whole, observed), "exact")
    import numpy as np

    rng, sizes = np.random.default_rng(seed), np.array([float(one) for one in differences if one])
    sums = np.array([rng.choice((-1.0, 1.0), len(sizes)) @ sizes for _ in range(draws)])
    # A pattern as far out as the observed one is counted, whatever the last bit of its sum says.
    far = int((abs(sums) >= observed / scale - 1e-9).sum())
    return SignFlip((far + 1) / (draws + 1), f"{draws:,} draws, seed {seed}")


def _counted(sizes: Sequence[int], observed: int) -> float:
    """P(|sum of +-sizes| >= observed) over equally likely signs."""
    import numpy as np

    shares = np.ones(1)  # entry i: the share of patterns whose sum is i - reach
    for size in sizes:
        wider = np.zeros(len(shares) + 2 * size)
        wider[: len(shares)] += shares / 2
        wider[2 * size :] += shares / 2
        shares = wider
    reach = sum(sizes)
    return float(min(shares[abs(np.arange(len(shares)) - reach) >= observed].sum(), 1.0))


def paired_interval(differences: Sequence[Fraction], level: float = LEVEL) -> Interval:
    """The mean difference with its interval by `METHOD`, within [-1, 1]. `n` counts tasks, at least one."""
    found = t_interval([*map(float, differences), 1.0, -1.0], level)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    value = float(sum(differences) / len(differences))
    return Interval(value, max(found.low, -1.0), min(found.high, 1.0), len(differences))


def half_width(interval: Interval) -> float:
    """How far from its middle a difference has to lie for this n to exclude it."""
    assert interval.low is not None
    assert interval.high is not None
    return (interval.high - interval.low) / 2


def detectable(differences: Sequence[Fraction], power: float = POWER, level: float = LEVEL) -> float:
    """The least true difference that so many tasks, differing as much as these, would show with this power.

    Connor 1987: d sqrt(n) = z_level sqrt(s) + z_power sqrt(s - d^2), s the mean squared difference (with one seed the
    share of tasks that differ), one task won and one lost added as in `paired_interval`. At most 1.
    """
    n = len(differences) + 2
    spread = fmean([*(float(one) ** 2 for one in differences), 1.0, 1.0])
    normal = NormalDist()
    a, b = normal.inv_cdf((1 + level) / 2) * math.sqrt(spread), normal.inv_cdf(power)
    root = math.sqrt(max(a * a * n - (n + b * b) * (a * a - b * b * spread), 0.0))
    return min((a * math.sqrt(n) + root) / (n + b * b), math.sqrt(spread), 1.0)


def task_differences(old: Sequence[Sequence[bool]], new: Sequence[Sequence[bool]]) -> list[Fraction]:
    """Mean of new - old for each task, from its answers seed by seed; every task has at least one pair."""
    return [
        Fraction(sum(itertools.starmap(lambda was, now: now - was, zip(a, b, strict=True))), len(a))
        for a, b in zip(old, new, strict=True)
    ]
