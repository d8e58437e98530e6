"""The row kernel against `kernels.rows` on NumPy: the same ids, and probabilities to the rounding of `exp`."""

from __future__ import annotations

import ctypes
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mtrun.kernels.native.library import NativeError, open_library, pointer
from mtrun.kernels.native.rows import RowFilters
from mtrun.kernels.rows import RowFilter, draw, filter_rows
from support.native_packs import same_bits

VOCABS = (7, 64, 1000, 4097, 49152)
TOP_K = (0, 1, 20, 256, 300)
TOP_P = (1.0, 0.95, 0.5, 1e-6)
MIN_P = (0.0, 0.05, 0.5)
TEMPERATURES = (0.2, 1.0, 1.7)
GREEDY = RowFilter(temperature=0.0)
INFINITY = np.float32(np.inf)


def filters() -> list[RowFilter]:
    """The grid, and greedy."""
    grid = product(TEMPERATURES, TOP_P, TOP_K, MIN_P)
    return [GREEDY, *(RowFilter(temperature, top_p, top_k, min_p) for temperature, top_p, top_k, min_p in grid)]


def rows_of(vocab: int) -> np.ndarray:
    """[9, vocab] float32: rows of every character."""
    rng = np.random.default_rng(vocab)
    rows = 3 * rng.standard_normal((9, vocab))
    rows[1] *= 5  # one id holds most
    rows[2] /= 50  # nearly flat
    rows[3] = np.round(rows[3])  # ties at every rank, at the peak too
    rows[4, rng.random(vocab) < 0.5] = -np.inf
    rows[4, vocab // 2] = 1.0
    rows[5] = -np.inf
    rows[5, vocab - 1] = -4.0
    rows[6, vocab // 3] = 1e30
    rows[7] = -2.5  # all the same
    rows[8, vocab - 2 :] = rows[8].max() + 1
    return rows.astype(np.float32)


def on_a_border(logits: np.ndarray, how: RowFilter) -> np.ndarray:
    """[R] bool: rows where the last bit of an exponential decides whether an id stays."""
    wide = logits.astype(np.float64)
    weights = np.exp((wide - wide.max(axis=1, keepdims=True)) / how.temperature)
    ranked = -np.sort(-weights, axis=1)
    before, total = np.cumsum(ranked, axis=1) - ranked, ranked.sum(axis=1, keepdims=True)
    near = (np.abs(ranked - how.min_p) < 1e-5 * how.min_p) & (how.min_p > 0)
    if how.top_p < 1:
        near |= np.abs(before - how.top_p * total) < 1e-6 * how.top_p * total
    return np.any(near, axis=1, keepdims=True)[:, 0]


def same_ids(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """None is dense."""
    return a is b if a is None or b is None else same_bits(a, b)


def check(filters: RowFilters, logits: np.ndarray, how: RowFilter) -> None:
    ids, probs = filters.filter(logits, how)
    wanted = filter_rows(logits, how)
    if wanted.ids is None:
        assert ids is None
    else:
        assert ids is not None
        assert ids.dtype == np.int32
        assert np.array_equal(ids, wanted.ids), how
    assert probs.dtype == np.float64
    assert np.array_equal(probs > 1e-9, wanted.probs > 1e-9), how
    assert np.allclose(probs, wanted.probs, rtol=1e-6, atol=1e-9), how
    assert np.abs(probs.sum(axis=1) - 1).max() < 1e-12


@pytest.mark.parametrize("vocab", VOCABS)
def test_rows_are_the_reference_s(isas, vocab):
    """The best set on the whole grid; of the largest rows, on a part of it that takes every value in turn."""
    rows, ours = rows_of(vocab), filters_of(isas[-1])
    grid = filters()[:: 7 if vocab > 10000 else 1]
    compared = 0
    for how in grid:
        clear = np.array([True] * 9) if how.greedy else ~on_a_border(rows, how)
        compared += clear.sum()
        check(ours, rows[clear], how)
    assert compared > 0.85 * 9 * len(grid)


def filters_of(isa: str) -> RowFilters:
    return RowFilters(open_library(), isa)


SOME = [
    GREEDY,
    RowFilter(1.0),
    RowFilter(0.2, 0.95, 20),
    RowFilter(1.7, 0.5, 0, 0.05),
    RowFilter(1.0, 1.0, 300, 0.5),
    RowFilter(1.0, 1e-6),
]  # of each path: greedy, dense, compact, and the ways into ranks


@pytest.mark.parametrize("vocab", [7, 64, 1000, 4097])
def test_rows_have_the_bits_of_every_set(isas, vocab):
    rows = rows_of(vocab)
    for how in SOME:
        ids, probs = filters_of(isas[0]).filter(rows, how)
        for isa in isas[1:]:
            other_ids, other = filters_of(isa).filter(rows, how)
            assert same_bits(other, probs), (isa, how)
            assert same_ids(other_ids, ids)


def test_a_row_does_not_see_its_neighbours_or_those_before(isa):
    """One filter serves rows of any size after each other, and of any stride."""
    ours = filters_of(isa)
    for vocab in (4097, 7, 1000, 64):
        rows = rows_of(vocab)
        wide = np.full((9, vocab + 37), INFINITY)  # what lies behind a row is not of it
        wide[:, :vocab] = rows
        for how in SOME:
            ids, probs = ours.filter(wide[:, :vocab], how)
            for i in range(9):
                alone_ids, alone = filters_of(isa).filter(rows[i : i + 1], how)
                assert same_bits(probs[i : i + 1], alone)
                assert same_ids(None if ids is None else ids[i : i + 1], alone_ids)


def test_rows_of_other_types_and_orders_are_copied(isa):
    rows = rows_of(64)
    for how in SOME:
        _, expected = filters_of(isa).filter(rows, how)
        for other in (rows.astype(np.float64), np.asfortranarray(rows), np.repeat(rows, 2, axis=1)[:, ::2]):
            assert same_bits(filters_of(isa).filter(other, how)[1], expected)


@pytest.mark.parametrize("vocab", [3, 64, 130, 1000])
def test_ties_rank_by_the_lower_id(isa, vocab):
    """At the peak, and where top-k cuts."""
    rng = np.random.default_rng(1)
    for turn in range(20):
        row = rng.integers(0, 3, (1, vocab)).astype(np.float32)
        order = np.argsort(-row[0], kind="stable")
        ids, _ = filters_of(isa).filter(row, GREEDY)
        assert ids is not None
        assert ids[0, 0] == order[0]
        k = min(1 + turn, vocab - 1)
        ids, _ = filters_of(isa).filter(row, RowFilter(top_k=k))
        assert ids is not None
        assert ids[0].tolist() == sorted(order[:k].tolist())
        _, probs = filters_of(isa).filter(row, RowFilter(top_k=vocab - 1, top_p=1e-9))
        assert probs[0].max() == 1.0


@pytest.mark.parametrize("vocab", [6, 64, 1000, 49152])
def test_equal_logits_leave_the_lower_ids(isa, vocab):
    """Their weights are exactly 1, so that even a border of top-p and of min-p is exact."""
    row = np.full((2, vocab), -2.5, dtype=np.float32)
    for how, kept in ((RowFilter(0.7, 0.5), vocab // 2), (RowFilter(0.7, 1.0, 0, 1.0), vocab), (RowFilter(1.0), vocab)):
        ids, probs = filters_of(isa).filter(row, how)
        assert ids is None
        assert same_bits(probs, np.repeat([[1 / kept] * kept + [0.0] * (vocab - kept)], 2, axis=0))


@pytest.mark.parametrize("how", SOME, ids=str)
@pytest.mark.parametrize("vocab", [7, 64, 100, 1000])
def test_rows_without_a_distribution_are_refused(isa, vocab, how):
    """All -inf; NaN or +inf at any place: in a whole block of 64 and in the last, at each end of a vector."""
    ours, fine = filters_of(isa), rows_of(vocab)
    none = np.full((1, vocab), -INFINITY)
    bad = [none]
    for place in {0, 5, vocab // 2, 15 % vocab, 63 % vocab, vocab - 1}:
        for value in (np.nan, np.inf):
            for base in (fine[:1], none):
                row = base.copy()
                row[0, place] = value
                bad.append(row)
    for row in bad:
        with pytest.raises(NativeError, match="a row of logits holds NaN or infinity"):
            ours.filter(row, how)
        with pytest.raises(NativeError, match="a row of logits"):
            ours.filter(np.concatenate([fine, row]), how)
    check(ours, fine[:1], how)


def test_no_rows_are_no_rows(isa):
    for how in SOME:
        _, probs = filters_of(isa).filter(np.empty((0, 64), dtype=np.float32), how)
        assert probs.shape[0] == 0


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.integers(1, 700),
    spread=st.sampled_from([0.01, 1.0, 4.0, 40.0]),
    coarse=st.booleans(),
    masked=st.sampled_from([0.0, 0.1, 0.9, 1.0]),
    how=st.builds(
        RowFilter,
        st.sampled_from([0.05, 0.2, 0.7, 1.0, 1.7, 5.0]),
        st.one_of(st.just(1.0), st.floats(1e-6, 1.0)),
        st.one_of(st.just(0), st.integers(1, 800)),
        st.one_of(st.just(0.0), st.floats(1e-6, 1.0)),
    ),
)
def test_any_row_and_filter(isa, seed, vocab, spread, coarse, masked, how):
    rng = np.random.default_rng(seed)
    logits = spread * rng.standard_normal((3, vocab))
    if coarse:
        logits = np.round(logits)
    logits[rng.random(logits.shape) < masked] = -np.inf
    logits[:, rng.integers(vocab)] = rng.standard_normal()
    logits = logits.astype(np.float32)
    clear = ~on_a_border(logits, how)
    assume(clear.any())
    check(filters_of(isa), logits[clear], how)


def drawn(library: ctypes.CDLL, weights: np.ndarray, uniform: float) -> int:
    weights = np.ascontiguousarray(weights, dtype=np.float64)
    return library.mtrun_rows_draw(pointer(weights), weights.size, uniform)


EDGES = (0.0, 5e-324, 0.25, 0.5, 0.75, float(np.nextafter(0.5, 0)), float(np.nextafter(1, 0)))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    weights=st.lists(st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 1e-300, 1e-17, 0.1, 3.0]), min_size=1, max_size=40),
    uniform=st.one_of(st.sampled_from(EDGES), st.floats(0, 1, exclude_max=True)),
)
def test_draws_are_the_reference_s(library, weights, uniform):
    """Zeros at either end and between, and uniforms on the very borders of slots."""
    assume(any(weights))
    slot = drawn(library, np.array(weights), uniform)
    assert weights[slot] > 0
    assert slot == int(draw(np.array(weights), np.array([uniform]))[0])


def test_random_draws_are_the_reference_s(library):
    rng = np.random.default_rng(0)
    for count in (1, 2, 20, 257, 5000):
        for _ in range(200):
            weights = rng.random(count) * (rng.random(count) < 0.4) + (np.arange(count) == rng.integers(count))
            uniform = rng.random()
            assert drawn(library, weights, uniform) == int(draw(weights, np.array([uniform]))[0])


@pytest.mark.parametrize("uniform", [0.75, EDGES[-1]])
def test_a_draw_that_rounds_up_to_the_total_stays_on_a_weight(library, uniform):
    """A product of the smallest numbers does; the slot is the last of positive weight."""
    least = 5e-324
    assert uniform * least == least
    for weights, slot in (([0.0, least, 0.0], 1), ([least, 0.0, 0.0], 0), ([least], 0)):
        assert drawn(library, np.array(weights), uniform) == slot


def test_a_border_belongs_to_the_slot_behind_it(library):
    weights = np.array([0.0, 0.5, 0.0, 0.25, 0.25, 0.0])
    got = [drawn(library, weights, uniform) for uniform in EDGES]
    assert got == [1, 1, 1, 3, 4, 1, 4]
