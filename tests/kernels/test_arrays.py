"""Where the two array modules differ, the helpers give one answer."""

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels import arrays

VALUES = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
SLOTS = np.array([[4, 0], [1, 1], [2, 3]], dtype=np.int32)
COMMON = {
    "argsort": lambda of: arrays.argsort(of(np.array([[1, 0, 1, 0, 0]] * 2))),
    "take": lambda of: arrays.take(of(VALUES), of(SLOTS)),
    "pick": lambda of: arrays.pick(of(VALUES), of(SLOTS[:, 0])),
    "put": lambda of: arrays.put(of(VALUES), of(SLOTS[:, :1]), of(VALUES[:, :1])),
    "pad": lambda of: arrays.pad(of(VALUES > 0), 1, 2, True),
    "cast": lambda of: arrays.cast(of(VALUES), arrays.namespace(of(VALUES)).int32),
}


@pytest.mark.parametrize("name", COMMON)
def test_both_modules_answer_alike_and_in_kind(name):
    device, host = COMMON[name](mx.array), COMMON[name](np.asarray)
    assert isinstance(device, mx.array)
    assert isinstance(host, np.ndarray)
    assert host.tolist() == device.tolist()


def test_equal_values_keep_their_order():
    assert COMMON["argsort"](np.asarray).tolist() == [[1, 3, 4, 0, 2]] * 2


def test_put_leaves_its_argument_alone():
    empty = np.zeros((3, 5), dtype=np.float32)
    assert arrays.put(empty, SLOTS, np.ones((3, 2), dtype=np.float32)).any()
    assert not empty.any()


@pytest.mark.parametrize("xp", [mx, np], ids=["mlx", "numpy"])
def test_logsumexp_with_absent_entries(xp):
    rows = np.array([[1000.0, 1000.0, -np.inf], [-5.0, -np.inf, -np.inf]], dtype=np.float32)
    got = np.array(arrays.logsumexp(arrays.of_module(rows, xp)))
    np.testing.assert_allclose(got, [[1000 + np.log(2)], [-5]], rtol=1e-6)


def test_an_array_of_the_module_is_itself():
    device = mx.array(VALUES)
    assert arrays.of_module(VALUES, np) is VALUES
    assert arrays.of_module(device, mx) is device
    assert np.array_equal(arrays.of_module(device, np), VALUES)
    assert arrays.of_module(VALUES, mx).tolist() == VALUES.tolist()


def test_a_numpy_scalar_is_of_numpy():
    assert arrays.namespace(np.float64(1)) is np
    assert arrays.namespace(mx.array(1)) is mx


def test_evaluation_skips_what_is_on_the_host():
    arrays.evaluate(None, VALUES, np.int32(1))
    arrays.evaluate(mx.array(1) + 1, None)
    assert arrays.accumulator(np) is np.float64
