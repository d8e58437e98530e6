"""What a comparison of two cells may claim."""

import itertools
import math

import numpy as np
import pytest

from mtrun.runtime.measure.abab import EXACT_UP_TO, compare, sign_flip

RUNS, SEEDS = 400, 8


def run(rng: np.random.Generator, effect: float, noise: float = 0.02) -> tuple[dict, dict]:
    """Eight seeds with two prompts each: large common drift, Gaussian noise on the log of each seed's ratio."""
    drift = rng.normal(4.0, 0.4, (SEEDS, 1)) + rng.normal(0.0, 0.1, (1, 2))
    a = np.exp(drift)
    b = a * effect * np.exp(rng.normal(0.0, noise, (SEEDS, 1)))
    return tuple({(s, p): float(rows[s, p]) for s in range(SEEDS) for p in range(2)} for rows in (a, b))


def binomial_band(rate: float) -> float:
    return 3.5 * math.sqrt(rate * (1 - rate) / RUNS)


def test_the_interval_covers_a_known_effect_at_its_nominal_rate() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(RUNS):
        ratio = compare(*run(rng, 1.1), 0.02).ratio
        hits += ratio.low <= 1.1 <= ratio.high
    assert abs(hits / RUNS - 0.95) < binomial_band(0.95)


def test_without_an_effect_the_sign_flip_test_rejects_at_its_nominal_rate() -> None:
    rng = np.random.default_rng(4)
    rejected = sum(compare(*run(rng, 1.0), 0.02).sign_flip.p <= 0.05 for _ in range(RUNS))
    assert rejected / RUNS < 0.05 + binomial_band(0.05)
    assert rejected / RUNS > 0.01


def test_equivalence_is_claimed_at_its_nominal_rate_at_the_edge_of_the_margin_and_often_inside() -> None:
    rng = np.random.default_rng(5)
    edge = sum(bool(compare(*run(rng, 1.05), 0.05).equivalent) for _ in range(RUNS))
    inside = sum(bool(compare(*run(rng, 1.0), 0.05).equivalent) for _ in range(RUNS))
    assert edge / RUNS < 0.05 + binomial_band(0.05)
    assert inside / RUNS > 0.8


def test_the_sign_flip_test_counts_every_flip() -> None:
    values = [0.3, -0.1, 0.2, 0.05]
    sums = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True))) for signs in itertools.product((1, -1), repeat=4)
    ]
    expected = sum(total >= sum(values) - 1e-12 for total in sums) / 16
    found = sign_flip(values)
    assert (found.p, found.flips, found.exact) == (expected, 16, True)
    assert sign_flip([0.1] * 8).p == 2 / 256, "eight seeds that agree: both ways of agreeing"
    assert sign_flip([0.0] * 4).p == 1.0


def test_beyond_sixteen_seeds_some_flips_are_drawn_and_it_says_so() -> None:
    at_limit, beyond = sign_flip([0.1] * EXACT_UP_TO), sign_flip([0.1] * (EXACT_UP_TO + 4))
    assert at_limit.exact
    assert at_limit.flips == 2**16
    assert not beyond.exact
    assert 0 < beyond.p < 1e-3
    assert sign_flip([0.1] * (EXACT_UP_TO + 4)) == beyond


def test_the_band_of_the_windows_decides_nothing() -> None:
    """Bands that lie apart with two seeds claim nothing; bands that overlap almost wholly hide a sure difference."""
    apart = compare({(0, 0): 10.0, (1, 0): 10.1}, {(0, 0): 11.0, (1, 0): 15.0}, 0.02)
    assert apart.different is False
    assert apart.verdict.startswith("undecided")
    speeds = [10.0 * 1.5**seed for seed in range(SEEDS)]
    wiggle = [1.02, 1.03] * (SEEDS // 2)
    overlapping = compare(
        {(seed, 0): speed for seed, speed in enumerate(speeds)},
        {(seed, 0): speed * wiggle[seed] for seed, speed in enumerate(speeds)},
        0.01,
    )
    assert overlapping.different is True
    assert overlapping.equivalent is False
    assert overlapping.verdict.startswith("different")


def test_a_small_sure_difference_is_both_there_and_within_the_margin() -> None:
    found = compare({(s, 0): 10.0 for s in range(8)}, {(s, 0): 10.1 + 0.001 * (s % 2) for s in range(8)}, 0.05)
    assert found.equivalent
    assert found.different
    assert "though small" in found.verdict


def test_every_pair_is_told_and_one_seed_decides_nothing() -> None:
    found = compare({(0, 0): 4.0, (0, 1): 6.0, (5, 0): 9.0}, {(0, 0): 10.0, (0, 1): 10.0, (7, 0): 1.0}, 0.02)
    assert found.pairs == ({"seed": 0, "a": 5.0, "b": 10.0, "ratio": 2.0},)
    assert found.ratio.value == pytest.approx(2.0)
    assert found.equivalent is None
    assert "one seed" in found.verdict
    assert compare({(0, 0): 1.0}, {(1, 0): 1.0}, 0.02) is None
