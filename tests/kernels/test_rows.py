"""Properties of the one row pipeline, against an independent float64 reference in numpy."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mtrun.kernels.arrays import of_module, total
from mtrun.kernels.rows import BLOCK, RowFilter, Rows, _dense, accumulator, draw, filter_rows, normalise, top_ids

BOTH = pytest.mark.parametrize("xp", [mx, np], ids=["mlx", "numpy"])
BELOW_ONE = np.nextafter(1.0, 0.0)
EXAMPLE = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], dtype=np.float32))


def dense(rows: Rows, vocab: int) -> np.ndarray:
    probs = np.array(rows.probs)
    if rows.ids is None:
        return probs
    full = np.zeros((len(probs), vocab))
    np.put_along_axis(full, np.array(rows.ids), probs, axis=1)
    return full


def reference(logits, how):
    """[V] probabilities of one row and the smallest distance of any top-p or min-p comparison from its cut."""
    scaled = logits.astype(np.float64) / how.temperature
    weights = np.exp(scaled - scaled.max())
    full = weights / weights.sum()
    order = np.argsort(-logits, kind="stable")
    before = np.concatenate([[0], np.cumsum(full[order])[:-1]])
    keep = full[order] > 0
    margins = [1.0]
    if how.top_p < 1:
        keep &= before < how.top_p
        margins.append(np.abs(before - how.top_p).min())
    if how.min_p > 0:
        keep &= weights[order] >= how.min_p
        margins.append(np.abs(weights - how.min_p).min())
    if how.top_k > 0:
        keep &= np.arange(len(order)) < how.top_k
    keep[0] = True
    out = np.zeros_like(full)
    out[order[keep]] = full[order[keep]]
    return out / out.sum(), min(margins)


def filtered(logits, how, xp=mx):
    return dense(filter_rows(of_module(logits, xp), how), logits.shape[-1])


@BOTH
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.sampled_from([7, 40, 64 * 9, 2500]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.95, 0.5]),
    top_k=st.sampled_from([0, 1, 3, 20]),
    min_p=st.sampled_from([0.0, 0.05]),
)
def test_rows_are_the_reference(xp, seed, vocab, temperature, top_p, top_k, min_p):
    rng = np.random.default_rng(seed)
    logits = (3 * rng.standard_normal((2, vocab))).astype(np.float32)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    logits[:, 0] = 0
    how = RowFilter(temperature, top_p, top_k, min_p)
    expected, margins = zip(*(reference(row, how) for row in logits), strict=True)
    assume(min(margins) > 1e-5)
    np.testing.assert_allclose(filtered(logits, how, xp), np.array(expected), atol=2e-6)


@BOTH
def test_top_p_is_measured_on_the_full_row_and_meets_top_k(xp):
    probs = filtered(EXAMPLE, RowFilter(1.0, 0.75, 3), xp)
    np.testing.assert_allclose(probs, [[4 / 9, 3 / 9, 2 / 9, 0]], atol=1e-7)


@BOTH
def test_the_token_that_crosses_top_p_stays(xp):
    logits = np.log2(np.array([[8, 4, 2, 2]], dtype=np.float32)) * np.log(np.float32(2))
    assert (filtered(logits, RowFilter(top_p=0.51), xp) > 0).tolist() == [[True, True, False, False]]
    assert (filtered(logits, RowFilter(top_p=0.49), xp) > 0).tolist() == [[True, False, False, False]]


@BOTH
def test_a_token_that_top_p_is_already_reached_before_goes(xp):
    probs = filtered(np.zeros((1, 4), dtype=np.float32), RowFilter(top_p=0.5), xp)
    assert probs.tolist() == [[0.5, 0.5, 0, 0]]


@BOTH
@pytest.mark.parametrize("temperature", [1e-6, 1.0])
@pytest.mark.parametrize("top_p", [1e-9, 0.5])
@pytest.mark.parametrize("top_k", [1, 2])
def test_no_filter_empties_a_row_or_loses_the_argmax(xp, top_k, top_p, temperature):
    rng = np.random.default_rng(5)
    logits = rng.standard_normal((6, 64 * 6)).astype(np.float32)
    probs = filtered(logits, RowFilter(temperature, top_p, top_k), xp)
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-12)
    assert (probs[np.arange(6), logits.argmax(axis=1)] > 0).all()
    assert ((probs > 0).sum(axis=1) <= top_k).all()


@BOTH
@pytest.mark.parametrize("top_k", [1, 2])
def test_equal_logits_rank_by_lower_id(xp, top_k):
    logits = np.zeros((1, 8), dtype=np.float32)
    logits[0, 5] = -1
    probs = filtered(logits, RowFilter(top_k=top_k), xp)
    assert np.flatnonzero(probs[0]).tolist() == list(range(top_k))
    assert filter_rows(of_module(logits, xp), RowFilter(0.0)).ids.tolist() == [[0]]


@BOTH
def test_greedy_is_a_point_mass_on_the_lowest_argmax(xp):
    rows = filter_rows(xp.array([[1.0, 3.0, 3.0], [2.0, -1.0, 0.0]]), RowFilter(0.0))
    assert rows.ids.tolist() == [[1], [0]]
    assert rows.probs.tolist() == [[1], [1]]


@BOTH
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    top_k=st.sampled_from([1, 4, 20]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.1]),
)
def test_compact_rows_equal_dense_rows_bit_for_bit(xp, seed, top_k, top_p, min_p):
    """top_k as slots, or as a cut of a dense row: forced dense by the limit on slots."""
    rng = np.random.default_rng(seed)
    logits = of_module(np.round(2 * rng.standard_normal((3, 320)), 1).astype(np.float32), xp)  # rounding makes ties
    how = RowFilter(0.8, top_p, top_k, min_p)
    compact = filter_rows(logits, how)
    assert compact.ids is not None
    assert (np.diff(np.array(compact.ids), axis=1) > 0).all()
    assert np.array_equal(dense(compact, 320), np.array(_dense(logits, how).probs))


@BOTH
@pytest.mark.parametrize("top_k", [0, 8])
def test_absent_tokens_change_no_bit_even_with_top_p_on_a_boundary(xp, top_k):
    """A row over a trimmed vocabulary equals the full-width row whose other logits are -inf."""
    rng = np.random.default_rng(2)
    for _ in range(60):
        trimmed = (2 * rng.standard_normal((1, 300))).astype(np.float32)
        ids = np.sort(rng.permutation(2000)[:300])
        full = np.full((1, 2000), -np.inf, dtype=np.float32)
        full[0, ids] = trimmed[0]
        weights = np.array(xp.exp(of_module(trimmed[0], xp) - trimmed.max().item())).astype(np.float64)
        top_p = float(np.cumsum(np.sort(weights)[::-1])[4] / weights.sum())  # the cut falls on a token
        how = RowFilter(1.0, top_p, top_k)
        expected = np.array(_dense(of_module(full, xp), how).probs)[0, ids]
        assert np.array_equal(filtered(full, how, xp)[0, ids], expected)
        assert np.array_equal(filtered(trimmed, how, xp)[0], expected)


@BOTH
def test_rows_of_a_batch_equal_rows_alone(xp):
    rng = np.random.default_rng(4)
    logits = rng.standard_normal((4, 640)).astype(np.float32)
    for how in (RowFilter(0.7, 0.9, 20), RowFilter(1.0, 0.9), RowFilter()):
        whole = filtered(logits, how, xp)
        assert np.array_equal(whole, np.concatenate([filtered(logits[i : i + 1], how, xp) for i in range(4)]))


@BOTH
def test_rows_slice_like_arrays(xp):
    logits = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
    rows = filter_rows(of_module(logits, xp), RowFilter(top_k=4))
    assert rows[:2].ids.tolist() == rows.ids[:2].tolist()
    assert rows[:2].probs.tolist() == rows.probs[:2].tolist()
    assert Rows(None, rows.probs)[1:].ids is None


@BOTH
def test_normalised_rows_sum_to_one(xp):
    weights = xp.array(np.random.default_rng(1).random((5, 200)), dtype=accumulator(xp))
    np.testing.assert_allclose(np.array(normalise(weights)).sum(axis=1), 1, atol=1e-14)


@BOTH
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    blocks=st.integers(1, 50),
    k=st.sampled_from([1, 2, 7, 20]),
    spread=st.integers(0, 5),
    absent=st.sampled_from([0.3, 0.97]),
)
def test_top_ids_are_a_stable_sort(xp, seed, blocks, k, spread, absent):
    """With many ties, -inf entries and whole rows of one value; both the blocked and the plain search."""
    rng = np.random.default_rng(seed)
    logits = rng.integers(-spread, spread + 1, (3, blocks * BLOCK)).astype(np.float32)
    logits[rng.random(logits.shape) < absent] = -np.inf
    got = np.array(top_ids(of_module(logits, xp), k))
    assert np.array_equal(got, np.argsort(-logits, axis=1, kind="stable")[:, :k])


@BOTH
def test_top_ids_of_a_width_that_no_block_divides(xp):
    logits = np.random.default_rng(3).standard_normal((2, BLOCK * 60 + 5)).astype(np.float32)
    got = np.array(top_ids(of_module(logits, xp), 3))
    assert np.array_equal(got, np.argsort(-logits, axis=1, kind="stable")[:, :3])


def drawn(weights, uniform, dtype="float64", xp=mx):
    dtype = getattr(xp, dtype)
    return draw(xp.array([weights], dtype=dtype), xp.array([uniform], dtype=dtype)).item()


@BOTH
@pytest.mark.parametrize(
    ("uniform", "slot"), [(0.0, 1), (0.2, 1), (0.25, 3), (np.nextafter(0.25, 0), 1), (0.5, 4), (BELOW_ONE, 4)]
)
def test_draw_at_the_edges(xp, uniform, slot):
    """Slots of weight 0 before, between and after are passed over; an edge belongs to the slot that it opens."""
    assert drawn([0, 1, 0, 1, 2, 0, 0], uniform, xp=xp) == slot


@BOTH
@settings(max_examples=80, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.0, 1e-30, 1e-7, 0.1, 1.0, 3.0]), min_size=1, max_size=12).filter(any),
    uniform=st.one_of(st.floats(0, BELOW_ONE), st.sampled_from([0.0, 0.5, BELOW_ONE])),
)
def test_draw_never_returns_a_slot_of_weight_zero(xp, weights, uniform):
    assert weights[drawn(weights, uniform, xp=xp)] > 0
    in_float32 = drawn(weights, min(uniform, float(np.nextafter(np.float32(1), np.float32(0)))), "float32", xp)
    assert weights[in_float32] > 0


@BOTH
def test_draw_is_the_inverse_cdf(xp):
    rng = np.random.default_rng(6)
    weights = rng.random((500, 9)) * (rng.random((500, 9)) < 0.7)
    weights[:, 2] += 0.1
    uniforms = rng.random(500)
    got = np.array(draw(xp.array(weights, dtype=xp.float64), xp.array(uniforms, dtype=xp.float64)))
    cdf = np.cumsum(weights, axis=1)
    expected = [np.searchsorted(cdf[i], uniforms[i] * cdf[i, -1], side="right") for i in range(500)]
    assert got.tolist() == expected


@BOTH
def test_draws_follow_the_weights(xp):
    """Evenly spaced uniforms hit each slot in proportion to its weight, to within one draw."""
    weights = np.array([0.1, 0.0, 0.4, 0.25, 0.25])
    uniforms = (np.arange(2000) + 0.5) / 2000
    got = np.array(draw(xp.array(np.tile(weights, (2000, 1)), dtype=xp.float64), xp.array(uniforms, dtype=xp.float64)))
    np.testing.assert_allclose(np.bincount(got, minlength=5), weights * 2000, atol=1)


@BOTH
def test_one_weight_row_serves_many_shapes(xp):
    weights = xp.array([[[0.0, 1.0]], [[1.0, 0.0]]], dtype=xp.float64)
    assert draw(weights, xp.array([[0.3], [0.9]], dtype=xp.float64)).tolist() == [[1], [0]]


@BOTH
def test_one_uniform_serves_every_row(xp):
    weights = xp.array([[0.5, 0.5], [0.8, 0.2]], dtype=xp.float64)
    assert draw(weights, xp.array([0.6], dtype=xp.float64)).tolist() == [1, 0]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.sampled_from([5, 3000]), top_k=st.sampled_from([0, 5, 20, 256, 300]))
def test_host_rows_are_the_devices(seed, width, top_k):
    """Equal ids and order, probabilities to float32 rounding: with ties, absent tokens, and rows past every limit."""
    rng = np.random.default_rng(seed)
    logits = np.round(3 * rng.standard_normal((3, width)), 1).astype(np.float32)
    logits[rng.random(logits.shape) < 0.3] = -np.inf
    logits[:, 0] = 0
    for how in (RowFilter(0.8, 1.0, top_k), RowFilter(1.0, 1.0, top_k, 0.01)):
        host, device = filter_rows(logits, how), filter_rows(mx.array(logits), how)
        assert isinstance(host.probs, np.ndarray)
        assert host.probs.dtype == np.float64
        assert (host.ids is None) == (device.ids is None)
        assert host.ids is None or (host.ids.dtype == np.int32 and host.ids.tolist() == device.ids.tolist())
        np.testing.assert_allclose(host.probs, np.array(device.probs), rtol=1e-6, atol=1e-8)
    k = max(top_k, 1)
    assert top_ids(logits, k).tolist() == top_ids(mx.array(logits), k).tolist()


@pytest.mark.parametrize("count", [1, 200, 256, 257, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_entries_of_zero_change_no_bit_of_a_host_total(count, dtype):
    rng = np.random.default_rng(count)
    values = rng.random(count).astype(dtype)
    sparse = np.zeros((2, 3 * count), dtype=dtype)
    sparse[0, np.sort(rng.permutation(3 * count)[:count])] = values
    sums = total(sparse)
    assert sums.shape == (2, 1)
    assert sums[:, 0].tolist() == [total(values).item(), 0.0]
    assert sums[0, 0] == pytest.approx(float(values.astype(np.float64).sum()), rel=1e-13)
