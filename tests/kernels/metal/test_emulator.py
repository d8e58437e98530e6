"""The emulator itself: what its operations compute, and every rule that a body can break."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.metal.source import PRELUDE, MetalSource
from support.metal_emulator.emulator import ORDERS, EmulationError, Emulator

LID = "uint i = thread_position_in_threadgroup.x;\n"
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);\n"


def run(
    emulator: Emulator,
    body: str,
    *inputs: mx.array | float | int,
    threads: int = 64,
    grid: int = 64,
    size: int = 64,
    dtype: mx.Dtype = mx.float32,
    header: str = PRELUDE,
    template: tuple = (),
) -> np.ndarray:
    """out [size] of a body that reads a, b, ... and starts with `i`, the thread in its group."""
    source = MetalSource("probe", tuple("abc"[: len(inputs)]), ("out",), LID + body, header)
    (out,) = emulator.kernel(source)(
        inputs=inputs,
        template=template,
        grid=(grid, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[(size,)],
        output_dtypes=[dtype],
    )
    return np.array(out.astype(mx.float32) if dtype == mx.bfloat16 else out)


def numbers(count: int = 64) -> mx.array:
    return mx.array(np.random.default_rng(1).standard_normal(count).astype(np.float32))


def test_simd_operations_stay_within_their_32_lanes(emulator: Emulator) -> None:
    given = numbers()
    lanes = np.array(given).reshape(2, 32)
    for name, expected in (
        ("simd_sum(a[i])", np.repeat(lanes.sum(axis=1), 32)),
        ("simd_max(a[i])", np.repeat(lanes.max(axis=1), 32)),
        ("simd_min(a[i])", np.repeat(lanes.min(axis=1), 32)),
        ("simd_prefix_inclusive_sum(a[i])", np.cumsum(lanes, axis=1).ravel()),
        ("simd_prefix_exclusive_sum(a[i])", (np.cumsum(lanes, axis=1) - lanes).ravel()),
        ("simd_broadcast(a[i], 3)", np.repeat(lanes[:, 3], 32)),
        ("simd_shuffle(a[i], 31 - i % 32)", lanes[:, ::-1].ravel()),
        ("simd_shuffle_xor(a[i], 1)", lanes.reshape(2, 16, 2)[:, :, ::-1].ravel()),
    ):
        np.testing.assert_allclose(run(emulator, f"out[i] = {name};", given), expected, atol=2e-6, err_msg=name)


def test_a_shuffle_from_no_lane_is_poison(emulator: Emulator) -> None:
    down = run(emulator, "out[i] = simd_shuffle_down(a[i], 2);", numbers()).reshape(2, 32)
    up = run(emulator, "out[i] = simd_shuffle_up(a[i], 2);", numbers()).reshape(2, 32)
    assert np.isnan(down[:, 30:]).all()
    assert np.isnan(up[:, :2]).all()
    np.testing.assert_array_equal(down[:, :30], np.array(numbers()).reshape(2, 32)[:, 2:])
    np.testing.assert_array_equal(up[:, 2:], np.array(numbers()).reshape(2, 32)[:, :30])


def test_integers_sum_exactly(emulator: Emulator) -> None:
    body = "out[i] = simd_prefix_exclusive_sum(uint(a[i])) + simd_sum(uint(1u << 27));"
    got = run(emulator, body, mx.arange(64, dtype=mx.int32), dtype=mx.uint32)
    expected = np.concatenate([np.cumsum(half) - half for half in np.arange(64).reshape(2, 32)])
    np.testing.assert_array_equal(got, (expected + (1 << 32)) % (1 << 32))


@pytest.mark.parametrize("order", ORDERS)
def test_atomics_count_in_any_order(order: str, emulator: Emulator) -> None:
    body = f"""threadgroup atomic_uint count[2];
        if (i < 2) atomic_store_explicit(&count[i], 0u, memory_order_relaxed);
        {BARRIER}
        atomic_fetch_add_explicit(&count[i % 2], i, memory_order_relaxed);
        {BARRIER}
        out[i] = float(atomic_load_explicit(&count[i % 2], memory_order_relaxed));"""
    got = run(emulator.turned(order), body)
    np.testing.assert_array_equal(got, np.where(np.arange(64) % 2, 1024, 992))


def test_the_orders_of_threads_differ(emulator: Emulator) -> None:
    """The first thread of a group to reach an atomic: 0, the last, or some other."""
    body = f"""threadgroup atomic_uint turn[1];
        if (i == 0) atomic_store_explicit(&turn[0], 0u, memory_order_relaxed);
        {BARRIER}
        out[i] = float(atomic_fetch_add_explicit(&turn[0], 1u, memory_order_relaxed));"""
    turns = [run(emulator.turned(order), body).argmin() for order in ORDERS]
    assert turns[:2] == [0, 63]
    assert turns[2] not in turns[:2]


def test_the_last_group_is_smaller_and_groups_are_numbered(emulator: Emulator) -> None:
    body = "out[thread_position_in_grid.x] = 1000.0f * threads_per_threadgroup.x + threadgroup_position_in_grid.x;"
    got = run(emulator, body, grid=80, size=80)
    np.testing.assert_array_equal(got, np.where(np.arange(80) < 64, 64_000, 16_001))


def test_templates_scalars_and_half_types(emulator: Emulator) -> None:
    body = "out[i] = T(float(a[i]) * b + N + (FLAG ? c : 0));"
    for dtype in (mx.float16, mx.bfloat16, mx.float32):
        template = (("T", dtype), ("N", 3), ("FLAG", True))
        got = run(emulator, body, numbers().astype(dtype), 0.5, 2, dtype=dtype, template=template)
        expected = ((numbers().astype(dtype).astype(mx.float32) * 0.5 + 3) + 2).astype(dtype).astype(mx.float32)
        np.testing.assert_array_equal(got.astype(np.float32), np.array(expected))


def test_threadgroup_memory_starts_as_poison_and_outputs_as_nan(emulator: Emulator) -> None:
    with pytest.raises(EmulationError, match=r"part\[0\] is read before it was written"):
        run(emulator, "threadgroup float part[64];\nout[i] = part[i];")
    with pytest.raises(EmulationError, match=r"out\[0\] is read before it was written"):
        run(emulator, "out[i] = out[i] + 1;")


BROKEN = {
    "past the end": ("out[i] = a[i + 1];", r"out of range: a\[64\] of 64"),
    "before the start": ("out[i] = a[int(i) - 1];", r"out of range: a\[-1\]"),
    "past a threadgroup array": ("threadgroup float part[63];\npart[i] = 1;\nout[i] = part[i];", r"part\[63\] of 63"),
    "a value left out": ("if (i > 0) out[i] = 1;", r"output out\[0\] is never written"),
    "two writers": ("threadgroup float part[1];\npart[0] = i;\nout[i] = 1;", r"part\[0\] is a race"),
    "no barrier": ("threadgroup float part[64];\npart[i] = i;\nout[i] = part[i ^ 1u];", "race|before it was written"),
    "the wrong fence": (
        "threadgroup float part[64];\npart[i] = i;\n"
        + BARRIER.replace("threadgroup)", "device)")
        + "out[i] = part[i ^ 1u];",
        "is a race",
    ),
    "a store among adds": (
        "threadgroup atomic_uint n[1];\nif (i == 0) atomic_store_explicit(&n[0], 0u, memory_order_relaxed);\n"
        "atomic_fetch_add_explicit(&n[0], 1u, memory_order_relaxed);\nout[i] = 1;",
        "race|before it was written",
    ),
    "a barrier in a branch": ("if (i < 32) " + BARRIER + "out[i] = 1;", "barrier is not reached by every thread"),
    "two barriers": ("if (i < 32) { " + BARRIER + " } else {\n" + BARRIER + "}\nout[i] = 1;", "at different barriers"),
    "a simd sum in a branch": ("out[i] = 0;\nif (i < 7) out[i] = simd_sum(1.0f);", "not reached by every lane"),
    "an early end": ("out[i] = 1;\nif (i == 5) return;\n" + BARRIER, "barrier is not reached by every thread"),
    "two simd sums": ("out[i] = i % 2 ? simd_sum(1.0f) : simd_sum(2.0f);", "not reached by every lane"),
    "broadcast from anywhere": ("out[i] = simd_broadcast(a[i], i % 32);", "from different lanes"),
    "too much memory": ("threadgroup float part[8193];\npart[i] = 1;\nout[i] = part[i];", "over 32768 bytes"),
    "an unknown name": ("out[i] = a[i] + missing;", "missing"),
    "no address space": ("const float* row = a + 1;\nout[i] = row[0];", "cannot convert"),
    "the wrong space": ("threadgroup float part[64];\ndevice float* p = part;\nout[i] = p[i];", "conversion from"),
    "a write to an input": ("a[i] = 1;\nout[i] = 1;", "error"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("order", ORDERS)
def test_a_broken_rule_is_reported(name: str, order: str, emulator: Emulator) -> None:
    body, words = BROKEN[name]
    with pytest.raises(EmulationError, match=words):
        run(emulator.turned(order), body, numbers())


def test_two_groups_may_not_share_an_output(emulator: Emulator) -> None:
    with pytest.raises(EmulationError, match="touched by two threadgroups"):
        run(emulator, "out[i] = 1;", grid=128)


def test_more_than_1024_threads_are_refused(emulator: Emulator) -> None:
    with pytest.raises(EmulationError, match="over 1024 threads"):
        run(emulator, "out[i] = 1;", threads=1056, grid=1056, size=1056)


def test_a_small_input_lies_in_constant_memory(emulator: Emulator) -> None:
    """As in MLX: under 8 values an input is no `device` pointer, so a body may only index it."""
    body = "const device float* row = a + 1;\nout[i] = row[0];"
    assert (run(emulator, body, numbers(8)) == np.array(numbers(8))[1]).all()
    with pytest.raises(EmulationError, match="conversion from"):
        run(emulator, body, numbers(7))
    assert (run(emulator, "out[i] = a[1];", numbers(7)) == np.array(numbers(7))[1]).all()


def test_helpers_cannot_read_the_position_of_a_thread(emulator: Emulator) -> None:
    """Attributes are parameters of the kernel function in Metal, not names of the whole file."""
    header = PRELUDE + "inline uint mine() { return thread_index_in_simdgroup; }\n"
    with pytest.raises(EmulationError, match="thread_index_in_simdgroup"):
        run(emulator, "out[i] = mine();", header=header)


def test_without_a_compiler_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert Emulator.missing() == "the Metal emulator needs Linux and g++"


def test_what_is_compiled_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Emulator(tmp_path)
    first = run(kept, "out[i] = 2 * a[i];", numbers())
    assert len(list(tmp_path.glob("kernel_*.so"))) == 1
    monkeypatch.setattr("subprocess.run", None)
    np.testing.assert_array_equal(run(kept, "out[i] = 2 * a[i];", numbers()), first)
