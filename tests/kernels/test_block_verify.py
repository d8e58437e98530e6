"""The block kernel alone: the published toy, corner rows, the replacement row."""

import itertools
from fractions import Fraction
from functools import partial

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.block_verify import block_verify, keep_probabilities, path_weights

BELOW_ONE = np.nextafter(1.0, 0.0)


def f64(values, xp=mx):
    return xp.array(np.array(values, dtype=float), dtype=xp.float64)


@pytest.fixture(params=[mx, np], ids=["mlx", "numpy"])
def judge(request):
    return partial(judged, request.param)


def judged(xp, p, q, drafted, coins):
    tau, replacement = block_verify(f64(p, xp), f64(q, xp), xp.array(drafted, dtype=xp.int32), f64(coins, xp))
    return tau.item(), np.array(replacement)


def test_the_published_toy_keeps_eleven_ninths():
    """Target (1/3, 2/3), draft (2/3, 1/3), two drafts: 11/9 tokens kept against 10/9 position by position."""
    p, q = np.array([[1 / 3, 2 / 3]] * 2), np.array([[2 / 3, 1 / 3]] * 2)
    block = position = 0.0
    for path in itertools.product(range(2), repeat=2):
        drafted = mx.array(path, dtype=mx.int32)
        weights = path_weights(f64(p), f64(q), drafted)
        surplus = mx.sum(mx.maximum(weights[:-1, None] * f64(p) - f64(q), 0), axis=-1)
        h = np.array(keep_probabilities(weights, surplus))
        a = [min(1, p[i, v] / q[i, v]) for i, v in enumerate(path)]
        chance = q[0, path[0]] * q[1, path[1]]
        block += chance * (2 * h[1] + (1 - h[1]) * h[0])
        position += chance * (a[0] * (1 - a[1]) + 2 * a[0] * a[1])
    assert block == pytest.approx(float(Fraction(11, 9)), abs=1e-15)
    assert position == pytest.approx(float(Fraction(10, 9)), abs=1e-15)


def test_depth_one_is_the_exact_law(judge):
    p, q = [[0.6, 0.3, 0.1]], [[0.2, 0.2, 0.6]]
    assert judge(p, q, [2], [1 / 6 - 1e-14])[0] == 1
    tau, replacement = judge(p, q, [2], [1 / 6 + 1e-14])
    assert tau == 0
    np.testing.assert_allclose(replacement, [[0.4, 0.1, 0]], atol=1e-15)


def test_a_later_success_overrides_an_earlier_failure(judge):
    """The coin of draft 1 fails, the coin of draft 2 succeeds: both are kept."""
    p, q = [[0.5, 0.5], [0.5, 0.5]], [[0.75, 0.25], [0.25, 0.75]]
    assert judge(p, q, [0, 0], [BELOW_ONE, 0.9])[0] == 2


def test_replacement_row_uses_the_weight_of_the_kept_path(judge):
    p, q = np.array([[0.25, 0.75], [0.9, 0.1]]), np.array([[0.5, 0.5], [0.3, 0.7]])
    tau, replacement = judge(p, q, [0, 1], [0.0, BELOW_ONE])  # w_1 = 1/2, w_2 = 1/14
    assert tau == 1
    np.testing.assert_allclose(replacement[1], [0.5 * 0.9 - 0.3, 0], atol=1e-15)


def test_identical_rows_keep_everything_under_any_coin(judge):
    rows = [[0.1, 0.2, 0.7]] * 3
    assert judge(rows, rows, [0, 1, 2], [BELOW_ONE] * 3)[0] == 3


def test_a_draft_of_probability_zero_ends_the_path_even_at_coin_zero(judge):
    p, q = [[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]
    tau, replacement = judge(p, q, [1, 0], [0.0, 0.0])
    assert tau == 0
    np.testing.assert_allclose(replacement[0], [0.5, 0])


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_row_that_follows_is_never_empty(judge, depth):
    rng = np.random.default_rng(depth)
    for _ in range(40):
        p, q = rng.dirichlet(np.ones(4), size=(2, depth))
        if rng.random() < 0.5:
            q = p * (1 + 1e-16 * rng.integers(-2, 3, p.shape))
        drafted = [int(rng.choice(4, p=row / row.sum())) for row in q]
        tau, replacement = judge(p, q, drafted, rng.choice([0.0, 0.5, BELOW_ONE], size=depth))
        assert np.isfinite(replacement).all()
        assert tau == depth or replacement[tau].max() > 0


def test_float32_rows_stay_float32():
    row = mx.array([[0.5, 0.5]], dtype=mx.float32)
    tau, replacement = block_verify(row, row, mx.array([0]), mx.array([0.5]))
    assert replacement.dtype == mx.float32
    assert tau.dtype == mx.int32


def test_the_kernel_never_synchronises(tmp_path):
    """Exporting traces the graph, which refuses any evaluation on the way."""
    rng = np.random.default_rng(9)
    p, q = (f64(rng.dirichlet(np.ones(4), size=3)) for _ in range(2))
    mx.export_function(str(tmp_path / "block"), block_verify, p, q, mx.array([0, 1, 2]), f64([0.9, 0.5, 0.7]))
