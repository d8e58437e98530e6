"""One order of operations: a row has the same bits alone and among others, on every instruction set, on any threads."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from mtrun.kernels.native.cache import NativeCache
from mtrun.kernels.native.engine import Activation, Entry, NativeEngine, StoredMatrix
from mtrun.kernels.native.llama import NativeTrunk
from support.native_packs import TinyModel, centred_triple, random_dense, random_triple, same_bits, tiny_model

INPUTS, OUTPUTS = 1120, 100  # as many weights as wake the threads, and tiles that do not divide among them
WIDTHS = (2, 3, 4, 5, 6, 7, 8, 9, 64, 67)


@cache
def matrices() -> dict[str, StoredMatrix]:
    quantised = {
        f"{bits}-{floats}": random_triple(OUTPUTS, INPUTS, bits, 32, floats).stored
        for bits in (4, 8)
        for floats in ("float32", "float16")
    }
    dense = {floats: random_dense(OUTPUTS, INPUTS, floats)[0] for floats in ("float32", "float16", "bfloat16")}
    return quantised | dense | {"centred": centred_triple(OUTPUTS, INPUTS).stored}


@cache
def rows_of(count: int, inputs: int) -> np.ndarray:
    return np.random.default_rng(4).standard_normal((count, inputs)).astype(np.float32)


def products(isa: str, activation: Activation, threads: int, rows: int) -> list[np.ndarray]:
    engine = NativeEngine(isa, threads, activation, [Entry(each) for each in matrices().values()])
    return [engine.multiply(i, rows_of(rows, INPUTS)) for i in range(len(matrices()))]


@pytest.mark.parametrize("activation", Activation)
def test_a_row_of_a_product_does_not_see_its_neighbours(isa, activation):
    engine = NativeEngine(isa, 1, activation, [Entry(each) for each in matrices().values()])
    x = rows_of(WIDTHS[-1], INPUTS)
    for index in range(len(matrices())):
        alone = np.concatenate([engine.multiply(index, x[i : i + 1]) for i in range(9)])
        whole = engine.multiply(index, x)
        assert same_bits(whole[:9], alone)
        for width in WIDTHS[:-1]:
            assert same_bits(engine.multiply(index, x[:width]), whole[:width])
            assert same_bits(engine.multiply(index, x[-width:]), whole[-width:])  # other neighbours, another place


@pytest.mark.parametrize("activation", Activation)
def test_products_have_the_bits_of_every_set(isas, activation):
    reference = products(isas[0], activation, 1, 7)
    for isa in isas[1:]:
        for name, expected, got in zip(matrices(), reference, products(isa, activation, 1, 7), strict=True):
            assert same_bits(got, expected), (isa, name)


@pytest.mark.parametrize("threads", [2, 3])
def test_products_have_the_bits_of_one_thread(isas, threads):
    for activation in Activation:
        for rows in (1, 5):
            many = products(isas[-1], activation, threads, rows)
            assert all(map(same_bits, many, products(isas[-1], activation, 1, rows)))


def test_an_engine_can_be_told_other_threads_and_activations(isas):
    """Its products then have the bits of an engine made so."""
    engine = NativeEngine(isas[-1], 1, Activation.WIDE, [Entry(each) for each in matrices().values()])
    for activation, threads in ((Activation.INT8, 3), (Activation.WIDE, 2), (Activation.INT8, 1)):
        engine.set_activation(activation)
        engine.set_threads(threads)
        ours = [engine.multiply(i, rows_of(5, INPUTS)) for i in range(len(matrices()))]
        assert all(map(same_bits, ours, products(isas[-1], activation, 1, 5)))
    assert not all(map(same_bits, ours, products(isas[-1], Activation.WIDE, 1, 5)))


@cache
def model(kind: str) -> TinyModel:
    """A dense model whose widths divide by nothing, and a quantised one wide enough to wake the threads."""
    if kind == "dense":
        return tiny_model(hidden=40, feed_forward=52, heads=3, kv_heads=1, head_dim=24, context=300, tied=False)
    return tiny_model(
        hidden=128, feed_forward=192, heads=4, kv_heads=2, head_dim=32, vocab=300, context=300, bits=8, layers=1
    )


def ids_of(count: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 70, (1, count)).astype(np.int32)


def forward(trunk: NativeTrunk, ids: np.ndarray, caches: list[NativeCache]) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states [1, L, H] and a copy of all logits [L, V]."""
    out = trunk.forward(ids, caches, "all")
    assert out.logits is not None
    return out.hidden, out.logits.copy()


def forwards(isa: str, kind: str, activation: Activation, threads: int = 1) -> list[np.ndarray]:
    """Hidden states of a prefill, those and the logits of a verify, and the head's states."""
    native = model(kind).native(isa, threads, activation)
    assert native.head is not None
    caches, head_caches = native.trunk.new_caches(), native.head.new_caches()
    prefill = native.trunk.forward(ids_of(70), caches, "none")
    hidden, logits = forward(native.trunk, ids_of(5), caches)
    states = native.head.forward(hidden, native.trunk.embed(ids_of(5)), head_caches, 0)
    return [prefill.hidden, hidden, logits, states]


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("kind", ["dense", "quantised"])
def test_a_row_of_a_trunk_does_not_see_its_neighbours(isa, kind, activation):
    """A forward of M rows is M forwards of one, past a prefix that leaves the rows at every place of a key block."""
    trunk = model(kind).native(isa, 1, activation).trunk
    ids = ids_of(70)
    caches = trunk.new_caches()
    alone = [forward(trunk, ids[:, i : i + 1], caches) for i in range(70)]
    hidden = np.concatenate([states for states, _ in alone], axis=1)
    logits = np.concatenate([rows for _, rows in alone])
    for width in (*range(2, 10), 64, 70):
        caches = trunk.new_caches()
        for start in range(0, 70, width):
            states, rows = forward(trunk, ids[:, start : start + width], caches)
            assert same_bits(states, hidden[:, start : start + width])
            assert same_bits(rows, logits[start : start + width])


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("kind", ["dense", "quantised"])
def test_forwards_have_the_bits_of_every_set(isas, kind, activation):
    reference = forwards(isas[0], kind, activation)
    for isa in isas[1:]:
        assert all(map(same_bits, forwards(isa, kind, activation), reference)), isa


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("kind", ["dense", "quantised"])
def test_forwards_have_the_bits_of_one_thread(isas, kind, threads):
    reference = forwards(isas[-1], kind, Activation.WIDE)
    for _ in range(3):
        assert all(map(same_bits, forwards(isas[-1], kind, Activation.WIDE, threads), reference))
