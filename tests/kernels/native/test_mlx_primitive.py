"""The primitive inside MLX's lazy graph: the library's own bits, whatever the shape, the stream and the order."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mtrun.kernels.native.engine import Activation, Entry, NativeEngine
from mtrun.kernels.native.library import VERSION, NativeError
from mtrun.kernels.native.mlx_primitive import extension
from mtrun.kernels.native.mlx_primitive.matrices import PackedMatrices
from mtrun.kernels.native.mlx_primitive.modules import PackedEmbedding, PackedLinear, pack, parameters, slots
from support.native_packs import random_dense, random_triple, same_bits

if extension.extension_path() is None:
    pytest.skip("the MLX primitive is not built", allow_module_level=True)

INPUTS = 64
ENTRIES = {
    "4 bits": Entry(random_triple(96, INPUTS, 4, 32).stored),
    "8 bits, padded": Entry(random_triple(70, INPUTS, 8, 64, "float16").stored),
    "float32, padded": Entry(random_dense(33, INPUTS, "float32")[0]),
    "bfloat16": Entry(random_dense(64, INPUTS, "bfloat16")[0]),
    "4 bits of another": Entry(random_triple(96, INPUTS, 4, 32, seed=1).stored),
    "some rows": Entry(random_triple(96, INPUTS, 4, 32).stored, rows=np.array([3, 90, 4], dtype=np.int32)),
}
ROWS = (*range(1, 12), 64, 65, 130)


@pytest.fixture(scope="module")
def matrices():
    return PackedMatrices("auto", 1, list(ENTRIES.values()))


@pytest.fixture(scope="module")
def plain():
    return NativeEngine("auto", 1, Activation.WIDE, list(ENTRIES.values()))


def draw(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("index", range(len(ENTRIES)), ids=ENTRIES)
def test_products_are_the_librarys_own(matrices, plain, index, rows):
    x = draw(rows, INPUTS, seed=rows)
    product = matrices.matrices[index]
    assert same_bits(np.array(product(x)), plain.multiply(index, np.array(x))[:, : product.outputs])


def test_products_agree_with_mlx(matrices):
    x = draw(9, INPUTS)
    weight, scales, biases = random_triple(96, INPUTS, 4, 32).mlx
    expected = mx.quantized_matmul(x, weight, scales, biases, group_size=32, bits=4)
    assert mx.max(mx.abs(matrices.matrices[0](x) - expected)) < 1e-3 * mx.max(mx.abs(expected))


@pytest.mark.parametrize("shape", [(INPUTS,), (1, 5, INPUTS), (2, 3, 4, INPUTS), (0, INPUTS)])
def test_leading_axes_stay_as_they_are(matrices, shape):
    x = draw(*shape)
    y = matrices.matrices[1](x)
    assert (y.shape, y.dtype) == ((*shape[:-1], 70), mx.float32)
    assert mx.array_equal(y.reshape(-1, 70), matrices.matrices[1](x.reshape(-1, INPUTS)))


def test_rows_that_lie_apart_are_gathered(matrices):
    x = draw(INPUTS, 6)
    assert mx.array_equal(matrices.matrices[0](x.T), matrices.matrices[0](mx.array(np.array(x).T.copy())))
    wide = draw(6, 2 * INPUTS)
    assert mx.array_equal(
        matrices.matrices[0](wide[::2, INPUTS:]), matrices.matrices[0](mx.array(np.array(wide)[::2, INPUTS:].copy()))
    )


def test_nothing_runs_before_it_is_evaluated(matrices):
    before = matrices.calls()
    y = matrices.matrices[0](draw(3, INPUTS)) + 1
    assert matrices.calls() == before
    mx.eval(y)
    assert matrices.calls() == before + 1


@pytest.mark.parametrize("shapeless", [False, True])
def test_a_compiled_graph_traces_once_and_gives_the_same(matrices, shapeless):
    traces = []

    def step(x: mx.array) -> mx.array:
        traces.append(x.shape)
        return mx.tanh(matrices.matrices[3](matrices.matrices[3](x) * 2 + x))

    compiled = mx.compile(step, shapeless=shapeless)
    xs = [draw(1, rows, INPUTS, seed=seed) for rows in (1, 4) for seed in range(3)]
    ours = [compiled(x) for x in xs]
    assert len(traces) == (1 if shapeless else 2)
    assert all(mx.allclose(y, step(x), rtol=1e-6, atol=1e-6) for x, y in zip(xs, ours, strict=True))


def test_two_matrices_are_two_nodes_when_compiled_and_one_is_one(matrices):
    x = draw(2, INPUTS)
    left, right = matrices.matrices[0], matrices.matrices[4]
    before = matrices.calls()
    added, doubled, other = mx.compile(lambda x: (left(x) + 1, left(x) * 2, right(x) + 1))(x)
    mx.eval(added, doubled, other)
    assert matrices.calls() - before == 2, "the same product of the same rows is one node"
    assert mx.allclose(added, left(x) + 1)
    assert mx.allclose(doubled, left(x) * 2)
    assert mx.allclose(other, right(x) + 1)
    assert not mx.allclose(other, added)


def test_streams_take_turns_on_one_engine(matrices):
    x = draw(5, INPUTS)
    expected = matrices.matrices[1](x)
    mx.eval(expected)
    streams = [mx.new_stream(mx.cpu) for _ in range(3)]
    made = []
    for turn in range(60):
        with mx.stream(streams[turn % 3]):
            made.append(matrices.matrices[1](x * 1.0))
    mx.async_eval(made)
    assert all(mx.array_equal(y, expected) for y in made)


def test_threads_share_an_engine(matrices):
    x = draw(5, INPUTS)
    expected = np.array(matrices.matrices[0](x))
    right: list[bool] = []

    def work() -> None:
        for _ in range(40):
            right.append(same_bits(np.array(matrices.matrices[0](mx.array(np.array(x)))), expected))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 120


def test_a_pending_graph_outlives_what_python_holds(plain):
    x = draw(3, INPUTS)
    packed = PackedMatrices("auto", 1, list(ENTRIES.values()))
    y = packed.matrices[0](packed.matrices[3](x))
    del packed
    gc.collect()
    again = plain.multiply(0, plain.multiply(3, np.array(x)))
    assert same_bits(np.array(y), again)


def test_the_engine_is_freed_once_when_the_last_graph_is_done():
    freed: list[int] = []
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda handle: freed.append(handle))
    fill = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
        lambda engine, matrix, x, rows, y: ctypes.memset(y, 0, rows * 32 * 4) and None
    )
    module = extension.load()
    places = [ctypes.cast(function, ctypes.c_void_p).value for function in (fill, free)]
    engine = module.Engine(77, *places)
    y = module.small_matmul(draw(2, INPUTS), engine, 0, INPUTS, 32, 32)
    del engine
    gc.collect()
    assert freed == [], "the pending graph needs it"
    assert float(mx.sum(mx.abs(y))) == 0.0
    del y
    deadline = time.monotonic() + 10
    while not freed and time.monotonic() < deadline:
        time.sleep(0.01)  # MLX drops the graph on a thread of its own
    assert freed == [77]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (mx.zeros((2, INPUTS - 1)), "rows of 64 inputs"),
        (mx.zeros(()), "rows of 64 inputs"),
        (mx.zeros((2, INPUTS), dtype=mx.float16), "float32"),
    ],
)
def test_another_width_or_type_is_refused_when_the_graph_is_built(matrices, x, message):
    with pytest.raises(ValueError, match=message):
        matrices.matrices[0](x)


def test_a_gradient_is_refused(matrices):
    with pytest.raises(ValueError, match=r"SmallMatmul|vjp"):
        mx.grad(lambda x: matrices.matrices[0](x).sum())(draw(1, INPUTS))


def fitting(**changes):
    """An extension as the check sees one that fits."""
    seen = {"built_against": lambda: mx.__version__, "array_type": lambda: mx.array, "INTERFACE": VERSION, **changes}
    return SimpleNamespace(**seen)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"built_against": lambda: "0.31.0"}, "built for mlx 0.31.0"),
        ({"array_type": lambda: None}, "different versions of nanobind"),
        ({"array_type": lambda: type("array", (), {})}, "different versions of nanobind"),
        ({"INTERFACE": VERSION + 1}, f"interface {VERSION + 1}"),
    ],
)
def test_an_extension_that_does_not_fit_is_refused(monkeypatch, changes, reason):
    module = fitting(**changes)
    monkeypatch.setattr(extension, "import_module", lambda name: module)
    if reason is None:
        assert extension.load() is module
        return
    with pytest.raises(NativeError, match=rf"{reason}.*install mtrun again"):
        PackedMatrices("auto", 1, list(ENTRIES.values()))


def test_the_built_extension_shares_the_types_of_this_mlx():
    module = extension.load()
    assert module.array_type() is mx.array
    assert module.built_against() == mx.__version__


def test_an_absent_or_broken_extension_is_told(monkeypatch):
    def broken(name: str) -> None:
        raise ImportError("undefined symbol")

    monkeypatch.setattr(extension, "import_module", broken)
    with pytest.raises(NativeError, match=r"cannot be loaded \(undefined symbol\)"):
        extension.load()
    monkeypatch.setattr(extension, "extension_path", lambda: None)
    with pytest.raises(NativeError, match="was not built"):
        extension.load()


def test_looking_for_the_extension_imports_neither_it_nor_mlx():
    script = (
        "import sys; from mtrun.kernels.native.mlx_primitive.extension import extension_path; "
        "print(extension_path() is not None, [name for name in sys.modules if 'mlx.' in name or '_primitive.' in name])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "True ['mtrun.kernels.native.mlx_primitive.extension']"


class Bag(nn.Module):
    """Linear modules at every kind of place, and one of a kind that is left alone."""

    def __init__(self) -> None:
        super().__init__()

        class Other(nn.Linear):
            pass

        self.embed = nn.Embedding(40, INPUTS)
        self.layers = [nn.Linear(INPUTS, 48), {"deep": nn.Linear(INPUTS, 32, bias=False)}]
        self.other = Other(INPUTS, 32)


def test_modules_at_every_place_are_found_and_packed_with_their_biases():
    model, x = Bag(), draw(3, INPUTS)
    found = slots(model, tied=True)
    assert [slot.name for slot in found] == ["layers.0", "layers.1.deep", "embed"]
    assert [slot.name for slot in slots(model, tied=False)] == ["layers.0", "layers.1.deep"]
    before, names = [slot.module for slot in found], parameters(model).keys()
    expected = [model.embed.as_linear(x), model.layers[0](x), model.layers[1]["deep"](x), model.embed(mx.array([5]))]
    swaps = pack([(found, parameters(model))], "auto", 1)
    swaps.put()
    assert isinstance(model.embed, PackedEmbedding)
    assert isinstance(model.layers[0], PackedLinear)
    assert parameters(model).keys() == names
    ours = [model.embed.as_linear(x), model.layers[0](x), model.layers[1]["deep"](x), model.embed(mx.array([5]))]
    assert all(mx.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(ours, expected, strict=True))
    swaps.back()
    assert all(slot.holder[slot.key] is module for slot, module in zip(found, before, strict=True))


@pytest.mark.parametrize("weights", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("rows", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("bits", [None, 8])
def test_a_packed_module_answers_in_the_type_of_the_stock_one(weights, rows, bits):
    model, x = Bag(), draw(3, INPUTS).astype(rows)
    model.set_dtype(weights)
    if bits:
        nn.quantize(model, group_size=32, bits=bits)
    found = slots(model, tied=True)
    expected = [model.embed.as_linear(x), model.layers[0](x)]
    pack([(found, parameters(model))], "auto", 1).put()
    for ours, theirs in zip([model.embed.as_linear(x), model.layers[0](x)], expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert mx.max(mx.abs(ours - theirs)) < 0.03 * mx.max(mx.abs(theirs))
