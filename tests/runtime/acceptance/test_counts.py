from copy import deepcopy
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrun.runtime.acceptance.counts import Counts


@st.composite
def cycles(draw):
    """One judged cycle: drafted, kept, deferred flags of every draft (a first rejection is deferred), divergences."""
    drafted = draw(st.integers(1, 5))
    kept = draw(st.integers(0, drafted))
    deferred = draw(st.lists(st.booleans(), min_size=drafted, max_size=drafted))
    if kept < drafted:
        deferred[kept] = True
    divergences = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=drafted, max_size=drafted))
    return drafted, kept, deferred, divergences


def counted(runs):
    counts = Counts()
    for run in runs:
        counts.record(*run)
    return counts


@settings(max_examples=100, deadline=None)
@given(st.lists(cycles(), max_size=12))
def test_identities_hold_after_any_cycles(runs):
    counts = counted(runs)
    assert counts.identities() == []
    assert counts.cycles == len(runs)
    assert counts.drafted == sum(drafted for drafted, *_ in runs)
    assert counts.accepted == sum(kept for _, kept, *_ in runs)
    assert counts.emitted == sum(kept + 1 for _, kept, *_ in runs)
    assert counts.divergence == sum(sum(each[: kept + 1]) for _, kept, _, each in runs)


@settings(max_examples=60, deadline=None)
@given(st.lists(cycles(), max_size=8), st.lists(cycles(), max_size=8))
def test_a_sum_of_requests_is_the_request_of_all_cycles(left, right):
    total = counted(left)
    other = counted(right)
    before = deepcopy(other)
    total.add(other)
    assert total == counted(left + right)
    assert other == before
    assert total.identities() == []


@settings(max_examples=60, deadline=None)
@given(st.lists(cycles(), min_size=1, max_size=6), st.data())
def test_any_single_wrong_counter_is_found(runs, data):
    counts = counted(runs)
    tied = ["cycles", "positions", "accepted", "coin_accepted", "resamples", "bonus", "emitted", "deferred"]
    name = data.draw(st.sampled_from(tied))
    setattr(counts, name, getattr(counts, name) + data.draw(st.sampled_from([-1, 1])))
    assert counts.identities() != []


def test_a_cycle_without_drafts_counts_nothing():
    counts = Counts()
    counts.record(0, 0, [], [])
    assert counts == Counts()
    assert counts.identities() == []


def test_flags_past_the_first_rejection_are_not_counted():
    counts = Counts()
    counts.record(3, 1, [False, True, True], [0.25, 0.5, 1.0])
    assert (counts.positions, counts.deferred, counts.accepted, counts.coin_accepted) == (2, 1, 1, 0)
    assert (counts.resamples, counts.bonus, counts.emitted, counts.divergence) == (1, 0, 2, 0.75)
    assert (counts.accepted_by_depth, counts.reached_by_depth) == ([1, 0, 0], [1, 1, 0])


def test_requests_of_different_depth_add_up():
    short, long = Counts(), Counts()
    short.record(1, 1, [True], [0.0])
    long.record(3, 2, [True] * 3, [0.0] * 3)
    short.add(long)
    assert (short.accepted_by_depth, short.reached_by_depth) == ([2, 1, 0], [2, 1, 1])


def test_a_violated_identity_is_a_sentence_with_its_figures():
    counts = Counts(positions=2, accepted=1, drafted=2)
    found = counts.identities()
    assert any("accepted + resamples = positions" in each and "positions=2" in each for each in found)
    assert all(each.endswith(".") for each in found)


@pytest.mark.parametrize("field", [each.name for each in fields(Counts)])
def test_every_counter_is_added(field):
    zero = getattr(Counts(), field)
    counts = Counts(**{field: [1, 2] if isinstance(zero, list) else 3})
    counts.add(counts)
    assert getattr(counts, field) == ([2, 4] if isinstance(zero, list) else 6)
