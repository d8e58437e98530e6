"""Statistics of paired comparisons. The seed is the unit of replication: windows are averaged within a seed first.

A percentile bootstrap covers too little at eight seeds, so intervals are Student t over seed means; ratios are formed
seed by seed on a log scale. Minimum, maximum and median describe a cell and are never used to compare two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Values = Mapping[tuple[int, int], float]  # (seed, prompt number) -> figure of that window

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; the bounds are None below two seeds. `n` counts seeds."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Band:
    """A description of `n` windows, not an inference."""

    median: float
    low: float
    high: float
    n: int


def band(values: Sequence[float]) -> Band | None:
    """Median, minimum and maximum; None where there is nothing to describe."""
    return Band(statistics.median(values), min(values), max(values), len(values)) if values else None


def t_interval(means: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Student t interval of the mean of seed means; None without any."""
    if not means:
        return None
    value, n = statistics.fmean(means), len(means)
    if n < 2:
        return Interval(value, None, None, n)
    from scipy.stats import t

    half = float(t.ppf((1 + level) / 2, n - 1)) * statistics.stdev(means) / math.sqrt(n)
    return Interval(value, value - half, value + half, n)


def seed_means(values: Values) -> dict[int, float]:
    """The mean over the windows of each seed, by seed."""
    by_seed: dict[int, list[float]] = {}
    for (seed, _), value in sorted(values.items()):
        by_seed.setdefault(seed, []).append(value)
    return {seed: statistics.fmean(found) for seed, found in by_seed.items()}


def matched(left: Values, right: Values) -> tuple[dict[int, float], dict[int, float]]:
    """Seed means of both sides over the windows that both have: the same prompts under the same seeds."""
    common = left.keys() & right.keys()
    return seed_means({key: left[key] for key in common}), seed_means({key: right[key] for key in common})


def paired_ratio(left: Values, right: Values, level: float = LEVEL) -> Interval | None:
    """left / right of positive figures: the geometric mean of the ratios of seed means, t interval on the logs."""
    ours, theirs = matched(left, right)
    logs = t_interval([math.log(ours[seed] / theirs[seed]) for seed in ours], level)
    if logs is None:
        return None
    low, high = (None if bound is None else math.exp(bound) for bound in (logs.low, logs.high))
    return Interval(math.exp(logs.value), low, high, logs.n)


def paired_difference(left: Values, right: Values, level: float = LEVEL) -> Interval | None:
    """left - right: the mean difference of seed means with its t interval."""
    ours, theirs = matched(left, right)
    return t_interval([ours[seed] - theirs[seed] for seed in ours], level)


def interval_of(values: Values, level: float = LEVEL) -> Interval | None:
    """The mean of seed means with its t interval."""
    return t_interval(list(seed_means(values).values()), level)


def interval_text(found: Interval | None, digits: int = 2, sign: str = "") -> str:
    """`1.22 [1.15, 1.30]`; without an interval the value alone, `-` where there is nothing."""
    if found is None:
        return "-"
    text = f"{found.value:{sign}.{digits}f}"
    if found.low is None or found.high is None:
        return text
    return f"{text} [{found.low:{sign}.{digits}f}, {found.high:{sign}.{digits}f}]"
