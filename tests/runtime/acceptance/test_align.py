import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrun.kernels.rows import Rows
from mtrun.runtime.acceptance.align import align, divergence

VOCAB = 12
FORMS = ["compact", "dense"]
BOTH = pytest.mark.parametrize("xp", [mx, np], ids=["mlx", "numpy"])


def rows_of(dense, size, form, xp=mx):
    """The rows as `Rows`: dense, or the ids of the `size` largest values (zeros fill up), ascending."""
    if form == "dense":
        return Rows(None, xp.array(dense, dtype=xp.float64))
    ids = np.sort(np.argsort(-dense, axis=1, kind="stable")[:, :size], axis=1)
    values = np.take_along_axis(dense, ids, axis=1)
    return Rows(xp.array(ids, dtype=xp.int32), xp.array(values, dtype=xp.float64))


def random_dense(rng, depth, size):
    rows = np.zeros((depth, VOCAB))
    for row in rows:
        row[rng.permutation(VOCAB)[: rng.integers(1, size + 1)]] = 1
    rows *= rng.random(rows.shape) + 0.01
    return rows / rows.sum(axis=1, keepdims=True)


def back_to_dense(aligned, values):
    values = np.array(values)
    if aligned.ids is None:
        return values
    dense = np.zeros((len(values), VOCAB))
    for row, (ids, inside) in enumerate(zip(np.array(aligned.ids), values, strict=True)):
        np.add.at(dense[row], ids, inside)
    return dense


@BOTH
@pytest.mark.parametrize("p_form", FORMS)
@pytest.mark.parametrize("q_form", FORMS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), depth=st.integers(1, 4), p_size=st.integers(1, 6), q_size=st.integers(1, 6))
def test_every_value_stands_unchanged_in_one_slot(xp, p_form, q_form, seed, depth, p_size, q_size):
    rng = np.random.default_rng(seed)
    p, q = random_dense(rng, depth, p_size), random_dense(rng, depth, q_size)
    drafted = np.array([rng.choice(VOCAB, p=row) for row in q])
    aligned = align(rows_of(p, p_size, p_form, xp), rows_of(q, q_size, q_form, xp), xp.array(drafted))
    assert np.array_equal(back_to_dense(aligned, aligned.p), p)
    assert np.array_equal(back_to_dense(aligned, aligned.q), q)
    slots = np.array(aligned.slots)
    here = np.arange(depth)
    assert np.array_equal(np.array(aligned.drafted_mass), q[here, drafted])
    assert np.array_equal(np.array(aligned.q)[here, slots], q[here, drafted])
    assert np.array_equal(np.array(aligned.p)[here, slots], p[here, drafted])
    if aligned.ids is not None:
        assert np.array_equal(np.array(aligned.ids)[here, slots], drafted)
    np.testing.assert_allclose(np.array(divergence(aligned.p, aligned.q)), np.maximum(p - q, 0).sum(1), atol=1e-15)


@BOTH
def test_compact_ids_ascend_and_the_second_of_two_equal_slots_is_empty(xp):
    p = Rows(xp.array([[1, 4, 7]]), xp.array([[0.5, 0.25, 0.25]], dtype=xp.float64))
    q = Rows(xp.array([[0, 4]]), xp.array([[0.75, 0.25]], dtype=xp.float64))
    aligned = align(p, q, xp.array([4]))
    assert aligned.ids.tolist() == [[0, 1, 4, 4, 7]]
    assert aligned.p.tolist() == [[0, 0.5, 0.25, 0, 0.25]]
    assert aligned.q.tolist() == [[0.75, 0, 0.25, 0, 0]]
    assert aligned.slots.tolist() == [2]


@BOTH
@pytest.mark.parametrize("form", FORMS)
def test_a_draft_that_q_could_not_draw_shows_as_mass_zero(xp, form):
    q = rows_of(np.eye(VOCAB)[[3]], 1, form, xp)
    p = rows_of(np.full((1, VOCAB), 1 / VOCAB), VOCAB, form, xp)
    assert align(p, q, xp.array([5])).drafted_mass.tolist() == [0]


@BOTH
def test_a_one_hot_draft_beside_a_dense_target(xp):
    p = Rows(None, xp.array([[0.25, 0.25, 0.5]], dtype=xp.float64))
    q = Rows(xp.array([[1]]), xp.ones((1, 1), dtype=xp.float64))
    aligned = align(p, q, xp.array([1]))
    assert aligned.q.tolist() == [[0, 1, 0]]
    assert aligned.block(xp.array([0.5])).drafted.tolist() == [1]


@BOTH
def test_a_narrower_dense_row_is_read_as_zero_past_its_end(xp):
    wide = Rows(None, xp.array([[0.5, 0.25, 0.25]], dtype=xp.float64))
    narrow = Rows(None, xp.array([[0.5, 0.5]], dtype=xp.float64))
    assert align(wide, narrow, xp.array([0])).q.tolist() == [[0.5, 0.5, 0]]


@BOTH
def test_divergence_is_symmetric_and_bounded(xp):
    rng = np.random.default_rng(0)
    p, q = (xp.array(rng.dirichlet(np.ones(5), size=8), dtype=xp.float64) for _ in range(2))
    forth, back = np.array(divergence(p, q)), np.array(divergence(q, p))
    np.testing.assert_allclose(forth, back, atol=1e-15)
    assert (forth <= 1).all()
    assert divergence(p, p).tolist() == [0] * 8


@pytest.mark.parametrize("p_form", FORMS)
@pytest.mark.parametrize("q_form", FORMS)
def test_alignment_never_synchronises(p_form, q_form, tmp_path):
    """Exporting traces the graph, which refuses any evaluation on the way."""
    rng = np.random.default_rng(1)
    p, q = rows_of(random_dense(rng, 2, 4), 4, p_form), rows_of(random_dense(rng, 2, 3), 3, q_form)

    def whole(p_probs, q_probs, drafted):
        aligned = align(Rows(p.ids, p_probs), Rows(q.ids, q_probs), drafted)
        return aligned.p, aligned.q, aligned.slots, aligned.drafted_mass, divergence(aligned.p, aligned.q)

    mx.export_function(str(tmp_path / "align"), whole, p.probs, q.probs, mx.array([1, 2]))
