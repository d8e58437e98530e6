"""Residual add with RMSNorm, and head RMSNorm with rotary positions, against MLX's own operations."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.metal.norms import (
    ADD_NORM,
    NORM_ROPE,
    HeadNorm,
    Rotary,
    add_norm_reference,
    metal_add_norm,
    metal_norm_rope,
    norm_rope_reference,
)
from support.metal_emulator.emulator import Emulator
from support.metal_emulator.faults import MISMATCH, RACE, RANGE, Fault, Runner, assert_caught

TOLERANCE = {mx.float32: 4e-6, mx.float16: 4e-3, mx.bfloat16: 4e-2}
WIDTHS = ((1, 5, 32), (3, 77, 64), (2, 1030, 1024))  # R, N, threads
HEADS = ((1, 1, 1, 8, 8), (3, 5, 2, 24, 16), (2, 4, 4, 70, 70), (8, 3, 1, 64, 64))  # M, H, G, D, turned


def random(dtype: mx.Dtype, *shape: int) -> mx.array:
    rng = np.random.default_rng(shape[-1])
    return mx.array(rng.standard_normal(shape).astype(np.float32)).astype(dtype)


def assert_close(got: tuple[mx.array, ...], expected: tuple[mx.array, ...], dtype: mx.Dtype) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, dtype)
        ours, theirs = (np.array(array.astype(mx.float32)) for array in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def compare_add(rows: int, width: int, threads: int, dtype: mx.Dtype, runner: Runner) -> None:
    given = random(dtype, rows, width), random(dtype, rows + 1, width)[1:], random(dtype, width)
    got = metal_add_norm(*given, 1e-5, threads=threads, kernel=runner(ADD_NORM))
    assert_close(got, add_norm_reference(*given, 1e-5), dtype)
    assert mx.array_equal(got[0], given[0] + given[1])


def compare_rope(
    shape: tuple[int, int, int, int, int], dtype: mx.Dtype, traditional: bool, normed: bool, runner: Runner
) -> None:
    tokens, query_heads, key_heads, dim, turned = shape
    rotary = Rotary.of_base(10_000.0, turned, traditional=traditional, scale=0.5)
    norm = HeadNorm(random(dtype, dim) + 1, random(dtype, 1, dim)[0] * 2, 1e-6) if normed else None
    given: Any = random(dtype, tokens, query_heads, dim), random(dtype, tokens, key_heads, dim), 33, rotary, norm
    got = metal_norm_rope(*given, kernel=runner(NORM_ROPE))
    assert_close(got, norm_rope_reference(*given), dtype)


def check(runner: Runner) -> None:
    for shape in WIDTHS:
        compare_add(*shape, mx.float32, runner)
    for traditional in (False, True):
        compare_rope(HEADS[1], mx.float32, traditional, True, runner)
    compare_rope(HEADS[3], mx.float32, False, False, runner)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("rows", "width", "threads"), WIDTHS)
def test_add_norm_is_an_add_and_a_norm(rows: int, width: int, threads: int, dtype: mx.Dtype, runner: Runner) -> None:
    compare_add(rows, width, threads, dtype, runner)


@pytest.mark.parametrize("traditional", [False, True], ids=["halves", "traditional"])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
def test_heads_turn_in_both_layouts(traditional: bool, normed: bool, runner: Runner) -> None:
    for shape in HEADS:
        compare_rope(shape, mx.float32, traditional, normed, runner)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_heads_turn_in_half_precision(dtype: mx.Dtype, runner: Runner) -> None:
    compare_rope(HEADS[1], dtype, False, True, runner)


def test_the_usual_periods_are_those_of_the_base(runner: Runner) -> None:
    heads = random(mx.float32, 2, 3, 16)
    got, _ = metal_norm_rope(heads, heads, 7, Rotary.of_base(500.0, 16), kernel=runner(NORM_ROPE))
    expected = mx.fast.rope(
        heads.transpose(1, 0, 2)[None], 16, traditional=False, base=500.0, scale=1.0, offset=7, freqs=None
    )
    assert_close((got,), (expected,), mx.float32)


def test_the_checks_that_faults_meet_pass_without_one(runner: Runner) -> None:
    check(runner)


ADD, ROPE = ADD_NORM.name, NORM_ROPE.name
FAULTS = (
    Fault("one value too many", "i < width; i += threads) {\n  T both",
          "i <= width; i += threads) {\n  T both", f"{RANGE}|{RACE}|{MISMATCH}|two threadgroups", ADD),
    Fault("the mean of the threads", "/ float(width)", "/ float(threads)", MISMATCH, ADD),
    Fault("another thread's sum", "T(joined[start + i])", "T(joined[start + width - 1 - i])", RACE, ADD),
    Fault("the total before every part is there",
          "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  float total", "  float total",
          f"{RACE}|is read before it was written", ADD),
    Fault("each simdgroup its own norm", "group_sum(part, scratch, lane, simdgroup, simdgroups)", "simd_sum(part)",
          MISMATCH, ADD),
    Fault("pairs across the whole head", "i + uint(ROTATED / 2);", "i + uint(DIM / 2);", f"{MISMATCH}|{RACE}", ROPE),
    Fault("turned the other way", "x * c - y * s", "x * c + y * s", MISMATCH, ROPE),
    Fault("every token at the same position", "offset + int(token)", "offset", MISMATCH, ROPE),
    Fault("heads and tokens stay in place", "rotated_queries + (own * tokens + token) * DIM",
          "rotated_queries + (token * query_heads + own) * DIM", MISMATCH, ROPE),
    Fault("a pair too many", "i < uint(ROTATED / 2)", "i <= uint(ROTATED / 2)", f"{RACE}|{RANGE}|{MISMATCH}", ROPE),
    Fault("the rest is left out", "i < uint(DIM); i += 32) {", "i < uint(ROTATED); i += 32) {", "never written", ROPE),
    Fault("the keys' norm for queries", "query ? float(query_weight[a])", "!query ? float(query_weight[a])", MISMATCH,
          ROPE),
    Fault("half a simdgroup sums", "rsqrt(simd_sum(part)", "rsqrt((lane < 16 ? simd_sum(part) : 1.0f)",
          "is not reached by every lane", ROPE),
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_seeded_fault_is_caught(fault: Fault, emulator: Emulator) -> None:
    assert_caught(fault, (ADD_NORM, NORM_ROPE), check, emulator)


def test_an_add_norm_that_it_cannot_serve_is_refused() -> None:
    stream, weight = mx.zeros((2, 8)), mx.zeros((8,))
    for branch, scales, words in (
        (mx.zeros((2, 9)), weight, "do not fit stream"),
        (stream, mx.zeros((9,)), "do not fit stream"),
        (stream.astype(mx.float16), weight, "one dtype"),
    ):
        with pytest.raises(ValueError, match=words):
            metal_add_norm(stream, branch, scales, 1e-5)
    with pytest.raises(ValueError, match=r"must be \[R, N\]"):
        metal_add_norm(weight, weight, weight, 1e-5)
    with pytest.raises(ValueError, match="multiple of 32"):
        metal_add_norm(stream, stream, weight, 1e-5, threads=33)


@pytest.mark.parametrize(
    ("queries", "keys", "turned", "words"),
    [
        ((2, 4, 16), (3, 4, 16), 16, "same tokens and head size"),
        ((2, 4, 16), (2, 4, 32), 16, "same tokens and head size"),
        ((2, 4, 6), (2, 4, 6), 6, "at least 8"),
        ((2, 4, 9), (2, 4, 9), 8, "even"),
        ((2, 4, 16), (2, 4, 16), 18, "up to the head size 16"),
        ((1, 2, 4, 16), (1, 2, 4, 16), 16, r"\[M, H, D\]"),
    ],
)
def test_heads_that_it_cannot_serve_are_refused(
    queries: tuple[int, ...], keys: tuple[int, ...], turned: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        metal_norm_rope(mx.zeros(queries), mx.zeros(keys), 0, Rotary.of_base(1e4, turned))


def test_norm_weights_that_do_not_fit_are_refused() -> None:
    heads = mx.zeros((2, 4, 16))
    for weight, words in ((mx.zeros((8,)), r"must be \[16\]"), (mx.zeros((16,), dtype=mx.float16), "one dtype")):
        with pytest.raises(ValueError, match=words):
            metal_norm_rope(heads, heads, 0, Rotary.of_base(1e4, 16), HeadNorm(weight, weight, 1e-6))
