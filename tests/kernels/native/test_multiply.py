"""Matrix products against the stored weights themselves, in float64, with bounds that follow from the arithmetic.

u = 2^-24 is the rounding of float32. SPAN activations are rounded to integers t of one step: words (top 32767) of the
least power of two with peak <= top * step, but no less than 2^-60 of the row's largest step; bytes (top 127) of
peak / top. Each is off by at most half a step, bytes by 0.01 of one more where float32 rounds x * (top / peak). A group
of 32 adds scale * s * (q . t) and bias * s * sum(t) to the output, each with at most four roundings of its own, and one
for each later addition of the 2 G.
"""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtrun.kernels.native.engine import Activation, Entry, NativeEngine, StoredMatrix
from mtrun.kernels.native.library import NativeError
from support.native_packs import Triple, centred_triple, random_dense, random_triple, same_bits, triple

UNIT = 2.0**-24
TOP = {Activation.WIDE: np.float32(32767), Activation.INT8: np.float32(127)}
SPAN = 32  # activations that share a step (kernels.h)
MOST_RAISE = 60
NOTHING = np.float32(1e-30)  # a span whose peak does not exceed it counts as zeros
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 64, 65)
SHAPES = ((128, 1), (384, 33), (1152, 70))  # inputs, outputs
FLOATS = ("float32", "float16", "bfloat16")


def activations(rows: int, inputs: int, seed: int = 1) -> np.ndarray:
    """[R, K] float32: groups of unlike magnitude, one of zeros, a row of zeros, and both zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, inputs)) * 10 ** rng.uniform(-3, 3, (rows, inputs // 32)).repeat(32, axis=1)
    x[0, :32], x[0, 33] = 0.0, -0.0
    if rows > 2:
        x[2] = -0.0
    return x.astype(np.float32)


def rounded(x: np.ndarray, top: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """x [R, K] -> integers [R, K] and their steps [R, K] in float64, rounded as the library says it rounds.

    The step of a span of next to nothing is twice its peak: half of that bounds what is lost.
    """
    missing = -x.shape[1] % SPAN  # the last span may be a shorter one
    spans = np.pad(x, ((0, 0), (0, missing))).reshape(len(x), -1, SPAN)
    peak = np.abs(spans).max(axis=-1, keepdims=True)
    some = peak > NOTHING
    if top == 127:
        inverse = np.divide(top, peak, out=np.zeros_like(peak), where=some)
        step = np.where(some, peak / top, 0)
    else:
        exponent = np.ceil(np.log2(np.where(some, peak, 1).astype(np.float64) / 32767))
        highest = np.where(some, exponent, -np.inf).max(axis=1, keepdims=True)
        step = np.where(some, np.exp2(np.maximum(exponent, highest - MOST_RAISE)), 0)
        inverse = np.divide(1, step, out=np.zeros_like(step), where=some).astype(np.float32)
    integers = np.rint(spans * inverse)  # half to even
    steps = np.where(some, step, 2 * peak).repeat(SPAN, axis=-1)
    flat = [each.reshape(len(x), -1)[:, : x.shape[1]] for each in (integers, steps)]
    return flat[0].astype(np.float64), flat[1].astype(np.float64)


def accumulation_bound(x: np.ndarray, matrix: Triple, top: np.float32) -> np.ndarray:
    """[R, N] what the roundings of the sums can come to."""
    integers, steps = rounded(x, top)
    terms = np.abs(integers * steps) @ (np.abs(matrix.scales) * matrix.integers + np.abs(matrix.biases)).T
    return UNIT * (2 * (x.shape[1] // 32) + 5) * terms + 1e-37


def rounding_bound(x: np.ndarray, matrix: Triple, top: np.float32) -> np.ndarray:
    """[R, N] what the rounding of the activations can come to."""
    _, steps = rounded(x, top)
    return (0.51 * steps + 4 * UNIT * np.abs(x)) @ np.abs(matrix.weights).T


def check_product(y: np.ndarray, x: np.ndarray, matrix: Triple, activation: Activation) -> None:
    """y is the product of the rounded activations to float32's rounding, and of the true ones to half a step."""
    outputs, top = len(matrix.integers), TOP[activation]
    assert y.shape == (len(x), -(-outputs // 32) * 32)
    assert not y[:, outputs:].any()
    integers, steps = rounded(x, top)
    sums = accumulation_bound(x, matrix, top)
    assert (np.abs(y[:, :outputs] - (integers * steps) @ matrix.weights.T) <= sums).all()
    true = x.astype(np.float64) @ matrix.weights.T
    assert (np.abs(y[:, :outputs] - true) <= sums + rounding_bound(x, matrix, top)).all()


@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_products(isa, bits, group, floats):
    for inputs, outputs in SHAPES:
        matrix = random_triple(outputs, inputs, bits, group, floats)
        x = activations(ROWS[-1], inputs)
        for activation in Activation:
            engine = NativeEngine(isa, 1, activation, [Entry(matrix.stored)])
            whole = engine.multiply(0, x)
            check_product(whole, x, matrix, activation)
            for rows in ROWS:
                assert same_bits(engine.multiply(0, x[:rows]), whole[:rows])


@pytest.mark.parametrize("activation", Activation)
def test_products_of_centred_triples(isa, activation):
    """And of one whose biases are all but once -128 scales: it may not be taken for a centred one."""
    matrix = centred_triple(70, 384)
    weight, scales, biases = matrix.mlx
    odd = np.array(biases)
    odd[41, 3] += np.float16(1)
    for each in (matrix, triple(weight, scales, mx.array(odd), 8, 32)):
        engine = NativeEngine(isa, 1, activation, [Entry(each.stored)])
        x = activations(5, 384)
        check_product(engine.multiply(0, x), x, each, activation)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_wide_products_are_mlx_products(isa, bits, group):
    matrix = random_triple(70, 1152, bits, group)
    x = np.random.default_rng(2).standard_normal((4, 1152)).astype(np.float32)
    expected = np.array(mx.quantized_matmul(mx.array(x), *matrix.mlx, transpose=True, group_size=group, bits=bits))
    got = NativeEngine(isa, 1, Activation.WIDE, [Entry(matrix.stored)]).multiply(0, x)[:, :70]
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 33), (40, 32), (200, 70), (384, 129)])
def test_dense_products(isa, floats, inputs, outputs):
    stored, weights = random_dense(outputs, inputs, floats)
    engine = NativeEngine(isa, 1, Activation.INT8, [Entry(stored)])  # activations meet dense weights as they are
    x = np.random.default_rng(3).standard_normal((ROWS[-1], inputs)).astype(np.float32)
    whole = engine.multiply(0, x)
    terms = np.abs(x.astype(np.float64)) @ np.abs(weights.astype(np.float64)).T
    error = np.abs(whole[:, :outputs] - x.astype(np.float64) @ weights.astype(np.float64).T)
    assert (error <= inputs * UNIT * terms).all()  # a chain of `inputs` fused multiply-adds
    assert not whole[:, outputs:].any()
    for rows in ROWS:
        assert same_bits(engine.multiply(0, x[:rows]), whole[:rows])


def test_halves_round_to_even(isa):
    """A peak of 127 makes the integers plain: x = n + 1/2 goes to the even neighbour, on both sides of 0."""
    x = np.zeros((1, 32), dtype=np.float32)
    x[0, :8] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]
    eye = np.eye(32, dtype=np.uint8)
    ones, none = mx.ones((32, 1)), mx.zeros((32, 1))
    matrix = triple(mx.array(eye).view(mx.uint32), ones, none, 8, 32)
    y = NativeEngine(isa, 1, Activation.INT8, [Entry(matrix.stored)]).multiply(0, x)
    assert y[0, :8].tolist() == [127, 0, 2, 2, 0, -2, -2, 126]


@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_sums_do_not_overflow(isa, bits):
    """All integers at their largest against all activations at theirs, of one sign and of both."""
    words = np.full((33, 128 * bits // 32), 0xFFFFFFFF, dtype=np.uint32)
    scales = mx.ones((33, 1))
    matrix = triple(mx.array(words), scales, -2.0 * scales, bits, 128)
    x = np.ones((3, 128), dtype=np.float32)
    x[1] = -1
    x[2, 64:] = -1
    for activation in Activation:
        y = NativeEngine(isa, 1, activation, [Entry(matrix.stored)]).multiply(0, x)
        check_product(y, x, matrix, activation)


@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_is_what_its_weights_stand_for(bits, floats):
    matrix = random_triple(70, 256, bits, 64, floats)
    engine = NativeEngine("generic", 1, Activation.WIDE, [Entry(matrix.stored)])
    scales, biases, integers = (each.astype(np.float32) for each in (matrix.scales, matrix.biases, matrix.integers))
    for output in (0, 15, 16, 31, 32, 69):
        assert same_bits(engine.row(0, output, 256), scales[output] * integers[output] + biases[output])
    mlx = np.array(mx.dequantize(*matrix.mlx, group_size=64, bits=bits).astype(mx.float32))
    rows = np.stack([engine.row(0, output, 256) for output in range(70)])
    step = {"float32": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7}[floats]  # MLX rounds to the scales' dtype
    assert np.abs(rows - mlx).max() <= step * np.abs(mlx).max()


def test_a_row_of_a_centred_triple():
    matrix = centred_triple(40, 64)
    engine = NativeEngine("generic", 1, Activation.WIDE, [Entry(matrix.stored)])
    assert same_bits(engine.row(0, 39, 64), matrix.weights[39].astype(np.float32))


@pytest.mark.parametrize("floats", FLOATS)
def test_a_dense_row_keeps_its_values(floats):
    stored, weights = random_dense(40, 37, floats)
    weights = weights.copy()
    engine = NativeEngine("generic", 1, Activation.WIDE, [Entry(stored)])
    for output in (0, 31, 32, 39):
        assert same_bits(engine.row(0, output, 37), weights[output])


@pytest.mark.parametrize("values", [[0.0, -0.0, 65504.0, -65504.0], [6e-8, 6.1e-5, -6e-8, 1e-7]])
def test_half_values_of_every_kind_are_exact(isa, values):
    """Zeros, the largest, and subnormal ones, as weights and by multiplication with 1."""
    weight = np.array([values] * 33, dtype=np.float16)
    engine = NativeEngine(isa, 1, Activation.WIDE, [Entry(StoredMatrix(weight))])
    assert engine.row(0, 32, 4).tolist() == weight[0].astype(np.float32).tolist()
    assert np.array_equal(engine.multiply(0, np.eye(4, dtype=np.float32))[:, 32], weight[0].astype(np.float32))


@pytest.mark.parametrize("bits", [0, 4, 8])
def test_chosen_rows_are_those_rows(isa, bits):
    """In the order given, repeated ones included, beside a matrix of other sizes in the same engine."""
    stored = random_triple(90, 128, bits, 32, "float16").stored if bits else random_dense(90, 128, "float32")[0]
    chosen = np.array([89, 3, 3, *range(10, 40), 0], dtype=np.int64)
    entries = [Entry(random_dense(5, 9, "float32")[0]), Entry(stored), Entry(stored, chosen)]
    engine = NativeEngine(isa, 1, Activation.WIDE, entries)
    x = activations(3, 128)
    assert engine.outputs(2) == 64
    assert same_bits(engine.multiply(2, x)[:, : chosen.size], engine.multiply(1, x)[:, chosen])
    assert not engine.multiply(2, x)[:, chosen.size :].any()
    assert same_bits(engine.row(2, 1, 128), engine.row(1, 3, 128))


@pytest.mark.parametrize("rows", [None, np.array([33, 2, 7], dtype=np.int32)])
@pytest.mark.parametrize("bits", [0, 8])
def test_four_bits_are_within_half_a_step(isa, bits, rows):
    """Each group of 32 keeps its least and largest value; the rest is off by at most a thirtieth of the range."""
    matrix = random_triple(40, 128, 8, 64)
    weights, stored = matrix.weights, matrix.stored
    if bits == 0:
        stored, weights = random_dense(40, 128, "float32")
    weights = weights if rows is None else weights[rows]
    engine = NativeEngine(isa, 1, Activation.WIDE, [Entry(stored, rows, four_bits=True)])
    got = np.stack([engine.row(0, output, 128) for output in range(len(weights))]).astype(np.float64)
    groups = weights.reshape(len(weights), -1, 32)
    half = np.ptp(groups, axis=-1, keepdims=True) / 30
    error = np.abs(got.reshape(groups.shape) - groups)
    assert (error <= half * (1 + 1e-5) + 1e-6).all()
    assert error.max() > 0.9 * half.min()  # it is a lossy form
    x = activations(3, 128)
    y = engine.multiply(0, x)[:, : len(weights)]
    _, steps = rounded(x, TOP[Activation.WIDE])
    sums = 100 * UNIT * (np.abs(x) @ np.abs(got).T + np.abs(x).sum(axis=1, keepdims=True) * np.abs(weights).max())
    assert (np.abs(y - x @ got.T) <= 0.51 * steps @ np.abs(got).T + sums).all()


def test_a_group_of_equal_weights_keeps_them_in_four_bits():
    equal = Entry(StoredMatrix(np.full((1, 64), 0.3, np.float32)), four_bits=True)
    engine = NativeEngine("generic", 1, Activation.WIDE, [equal])
    assert set(engine.row(0, 0, 64).tolist()) == {float(np.float32(0.3))}


def test_four_bits_take_inputs_in_whole_groups():
    stored, _ = random_dense(33, 40, "float32")
    with pytest.raises(NativeError, match=r"33 x 40 cannot be packed: .* groups of 32"):
        NativeEngine("generic", 1, Activation.WIDE, [Entry(stored, four_bits=True)])
    assert NativeEngine("generic", 1, Activation.WIDE, [Entry(stored)]).outputs(0) == 64


@pytest.mark.parametrize("rows", [[], [-1], [3, 70], [2**31 - 1]])
@pytest.mark.parametrize("bits", [0, 4])
def test_rows_that_a_matrix_lacks_are_refused(bits, rows):
    stored = random_triple(70, 64, 4, 32).stored if bits else random_dense(70, 64, "float16")[0]
    with pytest.raises(NativeError, match="some of the 70"):
        NativeEngine("generic", 1, Activation.WIDE, [Entry(stored, np.array(rows, dtype=np.int32))])


@pytest.mark.parametrize("width", [0, 63, 65, 128])
def test_activations_of_another_width_are_refused(width):
    engine = NativeEngine("generic", 1, Activation.WIDE, [Entry(random_triple(70, 64, 8, 64).stored)])
    with pytest.raises(ValueError, match=f"takes 64 inputs, not {width}"):
        engine.multiply(0, np.ones((2, width), dtype=np.float32))


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_not_finite_makes_every_product_of_its_row_nan(isa, bits, value, activation):
    """At the first place of a vector and at its last; the rows beside it keep their bits."""
    engine = NativeEngine(isa, 1, activation, [Entry(random_triple(70, 128, bits, 64).stored)])
    plain = activations(5, 128)
    x = plain.copy()
    x[1, 64], x[3, 127] = value, value
    expected, y = engine.multiply(0, plain), engine.multiply(0, x)
    assert np.isnan(y[[1, 3], :70]).all()
    assert same_bits(y[[0, 2, 4]], expected[[0, 2, 4]])


@pytest.mark.parametrize("floats", FLOATS)
def test_nan_passes_through_dense_weights(isa, floats):
    engine = NativeEngine(isa, 1, Activation.WIDE, [Entry(random_dense(33, 40, floats)[0])])
    x = np.ones((2, 40), dtype=np.float32)
    x[1, 39] = np.nan
    assert np.isnan(engine.multiply(0, x)[:, :33]).all(axis=1).tolist() == [False, True]


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("peak", [1e-30, 1e-36, 1e-38, 1e-45])
def test_next_to_nothing_counts_as_zeros(isa, peak, activation):
    """The inverse of such a peak would overflow; a span beside it keeps its products."""
    matrix = random_triple(70, 64, 8, 32)
    engine = NativeEngine(isa, 1, activation, [Entry(matrix.stored)])
    x = np.full((2, 64), peak, dtype=np.float32)
    x[1, 32:] = activations(1, 64)[0, 32:]
    none = x.copy()
    none[:, :32] = 0
    y = engine.multiply(0, x)
    assert not y[0].any()
    assert same_bits(y[1], engine.multiply(0, none)[1])
    check_product(y, x, matrix, activation)


@pytest.mark.parametrize("activation", Activation)
def test_a_little_more_than_nothing_counts(isa, activation):
    matrix = random_triple(70, 64, 8, 32)
    x = np.full((1, 64), 1.001e-30, dtype=np.float32)
    y = NativeEngine(isa, 1, activation, [Entry(matrix.stored)]).multiply(0, x)
    check_product(y, x, matrix, activation)
    assert y[0, :70].all()


MAGNITUDES = st.sampled_from([0.0, 1e-30, 1e-20, 1e-3, 1.0, 1e4, 1e20, 1e30])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 9),
    groups=st.integers(1, 9),
    outputs=st.integers(1, 70),
    bits=st.sampled_from([4, 8]),
    activation=st.sampled_from(list(Activation)),
    magnitudes=st.lists(MAGNITUDES, min_size=9, max_size=9),
    sparse=st.booleans(),
)
def test_any_rows_and_shapes(isa, seed, rows, groups, outputs, bits, activation, magnitudes, sparse):
    """Groups of zeros of either sign, and magnitudes from far below to far above those of any model."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, groups, 32)) * np.array(magnitudes[:groups])[:, None]
    if sparse:
        x *= rng.random(x.shape) < 0.1  # leaves zeros of both signs
    x = x.reshape(rows, -1).astype(np.float32)
    matrix = random_triple(outputs, 32 * groups, bits, 32, rng.choice(FLOATS), seed)
    y = NativeEngine(isa, 1, activation, [Entry(matrix.stored)]).multiply(0, x)
    check_product(y, x, matrix, activation)


def test_the_bounds_are_tight_enough_to_see_a_lost_bias():
    """The reference of this file is not so wide that a product without its biases, or of one wrong integer, passes."""
    matrix = random_triple(33, 384, 8, 64)
    x = activations(4, 384)
    for activation in Activation:
        y = NativeEngine("generic", 1, activation, [Entry(matrix.stored)]).multiply(0, x)
        changed = matrix.integers.copy()
        changed[5, 100] = (changed[5, 100] + 1) % 256
        for wrong in (replace(matrix, biases=0 * matrix.biases), replace(matrix, integers=changed)):
            with pytest.raises(AssertionError):
                check_product(y, x, wrong, activation)
