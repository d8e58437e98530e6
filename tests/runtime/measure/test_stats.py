"""The statistics that decide what a report may claim."""

import math

import numpy as np
import pytest

from mtrun.runtime.measure.stats import band, interval_of, paired_difference, paired_ratio, seed_means, t_interval

RUNS, SEEDS = 3000, 6


def test_the_t_interval_covers_the_truth_at_its_nominal_rate() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for means in rng.normal(3.0, 0.7, (RUNS, SEEDS)):
        found = t_interval(list(means))
        hits += found.low <= 3.0 <= found.high
    assert abs(hits / RUNS - 0.95) < 4 * math.sqrt(0.95 * 0.05 / RUNS)


def test_the_ratio_interval_covers_a_known_effect_under_drift_that_both_share() -> None:
    """Seed and prompt effects are large, the effect is 15 %: pairing has to remove what is common."""
    rng = np.random.default_rng(2)
    runs, hits, widest = 1000, 0, 0.0
    for _ in range(runs):
        common = rng.normal(3.0, 0.5, (SEEDS, 1)) + np.zeros((1, 2))
        right = np.exp(common)
        left = 1.15 * right * np.exp(rng.normal(0.0, 0.03, (SEEDS, 1)))
        cells = [{(s, p): float(rows[s, p]) for s in range(SEEDS) for p in range(2)} for rows in (left, right)]
        found = paired_ratio(*cells)
        hits += found.low <= 1.15 <= found.high
        widest = max(widest, found.high - found.low)
    assert abs(hits / runs - 0.95) < 4 * math.sqrt(0.95 * 0.05 / runs)
    assert widest < 0.3, "the shared drift leaked into the interval"


def test_windows_are_averaged_within_a_seed_so_that_repeats_do_not_shrink_the_interval() -> None:
    once = {(s, 0): float(s) for s in range(5)}
    often = {(s, p): float(s) for s in range(5) for p in range(20)}
    assert interval_of(once) == interval_of(often)
    assert interval_of(often).n == 5


def test_a_comparison_uses_only_windows_that_both_cells_have() -> None:
    left = {(0, 0): 4.0, (0, 1): 1000.0, (1, 0): 9.0, (7, 0): 1.0}
    right = {(0, 0): 2.0, (1, 0): 3.0, (2, 0): 50.0}
    assert paired_ratio(left, right).n == 2
    assert paired_ratio(left, right).value == pytest.approx(math.sqrt(2.0 * 3.0))
    assert paired_difference(left, right).value == pytest.approx((2.0 + 6.0) / 2)


def test_a_ratio_and_its_inverse_agree() -> None:
    left, right = ({(s, 0): base + s for s in range(4)} for base in (10.0, 5.0))
    one, other = paired_ratio(left, right), paired_ratio(right, left)
    assert one.value * other.value == pytest.approx(1.0)
    assert one.low * other.high == pytest.approx(1.0)


def test_nothing_is_claimed_from_too_little() -> None:
    assert t_interval([]) is None
    assert band([]) is None
    assert paired_ratio({(0, 0): 1.0}, {(1, 0): 1.0}) is None
    alone = t_interval([2.0])
    assert (alone.value, alone.low, alone.high, alone.n) == (2.0, None, None, 1)


def test_a_band_describes_windows() -> None:
    assert band([3.0, 1.0, 2.0]).median == 2.0
    assert (band([3.0, 1.0]).low, band([3.0, 1.0]).high, band([3.0, 1.0]).n) == (1.0, 3.0, 2)
    assert seed_means({(0, 0): 1.0, (0, 1): 3.0}) == {0: 2.0}
