"""Split attention against MLX's own, over whole caches, stretches of them and views with strides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.metal.attention import COMBINE, SPLIT, metal_attention, reference
from support.metal_emulator.emulator import Emulator
from support.metal_emulator.faults import MISMATCH, RACE, RANGE, Fault, Runner, assert_caught

TOLERANCE = {mx.float32: 3e-6, mx.float16: 2e-3, mx.bfloat16: 2e-2}


@dataclass(frozen=True)
class Case:
    name: str
    heads: tuple[int, int]  # of queries, of keys
    rows: int
    cache: int
    length: int
    parts: int | None
    threads: int
    dim: int = 32
    dtype: mx.Dtype = mx.float32
    size: float = 1.0  # of the queries: large scores make large exponents

    def arrays(self) -> tuple[mx.array, mx.array, mx.array]:
        rng = np.random.default_rng(self.cache)
        shapes = (self.heads[0], self.rows), (self.heads[1], self.cache), (self.heads[1], self.cache)
        made = [rng.standard_normal((1, *shape, self.dim)) for shape in shapes]
        queries, keys, values = (mx.array(array.astype(np.float32)).astype(self.dtype) for array in made)
        return queries * self.size, keys, values


CASES = (
    Case("one row of one token", (1, 1), 1, 1, 1, 1, 32),
    Case("eight rows alone", (2, 1), 8, 8, 8, 1, 64),
    Case("grouped queries", (6, 2), 4, 100, 77, 3, 128),
    Case("more parts than fit", (2, 2), 3, 40, 40, 33, 64),
    Case("a long cache", (2, 1), 4, 1300, 1287, None, 256),
    Case("large scores", (2, 1), 2, 64, 50, 4, 32, size=300.0),
    Case("half", (4, 2), 2, 70, 65, 2, 64, dim=64, dtype=mx.float16),
    Case("bfloat16", (4, 2), 2, 70, 65, 2, 64, dim=64, dtype=mx.bfloat16),
    Case("the widest head", (1, 1), 1, 20, 20, 2, 256, dim=256),
)


def compare(arrays: tuple[mx.array, mx.array, mx.array], case: Case, runner: Runner) -> None:
    scale = case.dim**-0.5
    kernels = runner(SPLIT), runner(COMBINE)
    options: dict[str, Any] = {"parts": case.parts, "threads": case.threads, "kernels": kernels}
    got = metal_attention(*arrays, scale=scale, length=case.length, **options)
    expected = reference(*arrays, scale=scale, length=case.length)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    ours, theirs = (np.array(array.astype(mx.float32)) for array in (got, expected))
    tolerance = TOLERANCE[case.dtype] * max(1.0, case.size / 10)  # scores round in proportion to their size
    np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=tolerance)


def check(runner: Runner) -> None:
    for case in CASES[:6]:
        compare(case.arrays(), case, runner)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_attention_is_that_of_mlx(case: Case, runner: Runner) -> None:
    compare(case.arrays(), case, runner)


def test_views_are_read_where_they_lie(runner: Runner) -> None:
    """A cache cut short, and queries whose heads and tokens changed places: neither is row-contiguous."""
    case = Case("", (4, 2), 3, 96, 64, 2, 64)
    queries, keys, values = case.arrays()
    turned = mx.contiguous(queries.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    short = keys[:, :, :64], values[:, :, :64]
    mx.eval(turned, *short)
    compare((turned, *short), case, runner)


def test_the_checks_that_faults_meet_pass_without_one(runner: Runner) -> None:
    check(runner)


FAULTS = (
    Fault("a row sees its successor", "j <= length - ROWS + r", "j <= length - ROWS + r + 1", MISMATCH, SPLIT.name),
    Fault("the last part runs over", "min(first + span, length)", "first + span", f"{RANGE}|{MISMATCH}", SPLIT.name),
    Fault("a key head each", "head / uint(queries_shape[1] / keys_shape[1])", "head", RANGE, SPLIT.name),
    Fault("an old sum never fades", "row_sum[r] * fade + weight", "row_sum[r] + weight", MISMATCH, SPLIT.name),
    Fault("states are overwritten",
          "    sum[at] = whole;\n  }\n  threadgroup_barrier(mem_flags::mem_threadgroup);",
          "    sum[at] = whole;\n  }", RACE, SPLIT.name),
    Fault("states are read early",
          "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  float most", "  float most",
          f"{RACE}|is read before it was written", SPLIT.name),
    Fault("half a simdgroup sums", "simd_sum(dot)", "(lane < 16 ? simd_sum(dot) : 0.0f)",
          "is not reached by every lane", SPLIT.name),
    Fault("a part that sees nothing counts",
          "if (part_best[s] > -INFINITY) whole +=", "whole +=", MISMATCH, SPLIT.name),
    Fault("strides of the keys for the values", "j * values_strides[2]", "j * values_strides[1]", f"{RANGE}|{MISMATCH}",
          SPLIT.name),
    Fault("parts weigh the same", "exp(here - most)", "1.0f", MISMATCH, COMBINE.name),
    Fault("the first row's peaks", "best[row * parts + i];", "best[i];", MISMATCH, COMBINE.name),
    Fault("rows on top of each other", "mixed[row * DIM + d]", "mixed[d]", "touched by two threadgroups", COMBINE.name),
    Fault("a part too many", "uint(out_shape[1]);", "uint(out_shape[1]) + 1;", f"{RANGE}|{MISMATCH}", COMBINE.name),
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_seeded_fault_is_caught(fault: Fault, emulator: Emulator) -> None:
    assert_caught(fault, (SPLIT, COMBINE), check, emulator)


def rows(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("queries", "keys", "options", "words"),
    [
        (rows(1, 4, 9, 32), rows(1, 2, 20, 32), {}, "1 to 8 rows"),
        (rows(2, 4, 1, 32), rows(2, 2, 20, 32), {}, "one sequence"),
        (rows(1, 4, 1, 48), rows(1, 2, 20, 48), {}, "multiple of 32"),
        (rows(1, 4, 1, 64), rows(1, 2, 20, 32), {}, "the keys' too"),
        (rows(1, 3, 1, 32), rows(1, 2, 20, 32), {}, "no multiple of 2 key heads"),
        (rows(1, 4, 1, 32), rows(1, 2, 20, 32, dtype=mx.float16), {}, "must share"),
        (rows(4, 1, 32), rows(1, 2, 20, 32), {}, r"\[1, H, M, D\]"),
        (rows(1, 4, 3, 32), rows(1, 2, 20, 32), {"length": 2}, "from 3 to the 20 keys"),
        (rows(1, 4, 3, 32), rows(1, 2, 20, 32), {"length": 21}, "from 3 to the 20 keys"),
        (rows(1, 4, 3, 32), rows(1, 2, 20, 32), {"parts": 0}, "from 1 to the length"),
        (rows(1, 4, 3, 32), rows(1, 2, 20, 32), {"threads": 512}, "up to 256"),
    ],
)
def test_what_it_cannot_serve_is_refused(queries: mx.array, keys: mx.array, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        metal_attention(queries, keys, keys, scale=1.0, **options)
