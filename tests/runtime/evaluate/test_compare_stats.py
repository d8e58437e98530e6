"""The statistics of paired right and wrong, held against scipy, against counting out, and against simulated truth."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from mtrun.runtime.evaluate import mcnemar as module
from mtrun.runtime.evaluate.mcnemar import (
    detectable,
    half_width,
    mcnemar,
    paired_interval,
    sign_flip,
    task_differences,
)

TABLES = st.tuples(st.integers(0, 300), st.integers(0, 300))


@given(TABLES)
@settings(deadline=None)
def test_mcnemar_is_the_two_sided_binomial_on_the_pairs_that_differ(table: tuple[int, int]) -> None:
    found = mcnemar(*table)
    n = sum(table)
    assert (found.only_old, found.only_new) == table
    assert found.exact == pytest.approx(binomtest(table[0], n).pvalue if n else 1.0, rel=1e-9)
    fewer = min(table)
    assert found.mid == pytest.approx(min(2 * binom.cdf(fewer, n, 0.5) - binom.pmf(fewer, n, 0.5), 1), rel=1e-9)


def test_mcnemar_of_a_table_worked_by_hand() -> None:
    """1 against 5: 2 (1 + 6) / 64 exact, and 6 / 64 less as mid-p."""
    found = mcnemar(5, 1)
    assert (found.exact, found.mid) == (14 / 64, 8 / 64)
    assert mcnemar(5, 1).exact == mcnemar(1, 5).exact
    assert (mcnemar(0, 0).exact, mcnemar(0, 0).mid, mcnemar(4, 4).mid) == (1.0, 1.0, 1.0)


@given(TABLES)
@settings(deadline=None)
def test_with_one_seed_the_sign_flip_test_is_mcnemars(table: tuple[int, int]) -> None:
    each = [Fraction(-1)] * table[0] + [Fraction(1)] * table[1] + [Fraction(0)] * 5
    found = sign_flip(each)
    assert found.method == "exact"
    assert found.p == pytest.approx(mcnemar(*table).exact, rel=1e-6)


SHARES = st.integers(1, 4).flatmap(lambda n: st.integers(-n, n).map(lambda won: Fraction(won, n)))


@given(st.lists(SHARES, min_size=1, max_size=9))
@settings(deadline=None)
def test_the_sign_flip_test_counts_every_pattern(each: list[Fraction]) -> None:
    sums = [abs(sum(s * one for s, one in zip(signs, each, strict=True))) for signs in _patterns(len(each))]
    expected = sum(one >= abs(sum(each)) for one in sums) / len(sums)
    assert sign_flip(each).p == pytest.approx(expected, rel=1e-12)


def _patterns(n: int) -> itertools.product:
    return itertools.product((-1, 1), repeat=n)


def test_drawn_patterns_come_near_the_counted_ones_and_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    each = [Fraction(won, 3) for won in (3, 2, -1, 1, 2, 0, 1, -2, 3, 1, 1, -1)]
    exact = sign_flip(each)
    monkeypatch.setattr(module, "_WIDEST", 0)
    drawn, again = sign_flip(each), sign_flip(each)
    assert drawn == again
    assert drawn.method == "20,000 draws, seed 0"
    assert abs(drawn.p - exact.p) < 4 * math.sqrt(exact.p * (1 - exact.p) / 20_000)


def test_a_tasks_difference_is_the_mean_over_its_seeds() -> None:
    old = [[True, True], [False, False], [True, False, False]]
    new = [[True, True], [True, False], [False, False, False]]
    assert task_differences(old, new) == [Fraction(0), Fraction(1, 2), Fraction(-1, 3)]


def _run(rng: np.random.Generator, tasks: int, seeds: int, skill: np.ndarray) -> list[list[bool]]:
    return (rng.random((tasks, seeds)) < skill[:, None]).tolist()


@pytest.mark.parametrize(("tasks", "seeds", "shift"), [(80, 1, 0.0), (80, 1, -0.1), (80, 4, -0.1), (320, 2, 0.02)])
def test_the_interval_covers_the_true_difference(tasks: int, seeds: int, shift: float) -> None:
    """Tasks differ much in difficulty, which pairing has to remove; seeds of one task hang together."""
    rng, runs, hits = np.random.default_rng(tasks + seeds), 1500, 0
    for _ in range(runs):
        skill = rng.beta(0.6, 0.6, tasks)
        moved = np.clip(skill + shift, 0, 1)
        each = task_differences(_run(rng, tasks, seeds, skill), _run(rng, tasks, seeds, moved))
        found = paired_interval(each)
        hits += found.low <= float((moved - skill).mean()) <= found.high
    assert hits / runs > 0.95 - 4 * math.sqrt(0.95 * 0.05 / runs)
    # Adding a pair widens the interval most where the seeds have averaged a task's noise out.
    assert hits / runs < 0.995


def test_repeated_seeds_of_the_same_answers_do_not_shrink_the_interval() -> None:
    old, new = [[True]] * 20 + [[False]] * 20, [[False]] * 12 + [[True]] * 28
    often = [task_differences([one * 9 for one in old], [one * 9 for one in new])]
    once = [task_differences(old, new)]
    assert paired_interval(*often) == paired_interval(*once)


def test_runs_without_a_differing_answer_are_not_claimed_equal() -> None:
    found = paired_interval([Fraction(0)] * 50)
    assert found.value == 0
    assert found.low == pytest.approx(-found.high)
    assert 0.04 < half_width(found) < 0.08, "the rule of three says 3 / 50"
    assert half_width(paired_interval([Fraction(0)] * 500)) < half_width(found) / 5
    assert half_width(paired_interval([Fraction(1)])) <= 1


@pytest.mark.parametrize(("tasks", "discordance"), [(200, 0.2), (320, 0.4)])
def test_a_difference_of_the_detectable_size_is_found_with_the_power_that_is_named(
    tasks: int, discordance: float
) -> None:
    level = detectable(_split(tasks, discordance, 0.0))
    rng, runs = np.random.default_rng(5), 2000
    shares = [(discordance + level) / 2, (discordance - level) / 2, 1 - discordance]
    found = [mcnemar(int(lost), int(won)).mid < 0.05 for won, lost, _ in rng.multinomial(tasks, shares, runs)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.05)
    assert detectable(_split(4 * tasks, discordance, 0.0)) == pytest.approx(level / 2, rel=0.05)


def _split(tasks: int, discordance: float, level: float) -> list[Fraction]:
    """Differences of `tasks` tasks of which so many differ, won more often than lost by `level` of all."""
    won, lost = (round(tasks * (discordance + sign * level) / 2) for sign in (1, -1))
    return [Fraction(1)] * won + [Fraction(-1)] * lost + [Fraction(0)] * (tasks - won - lost)
