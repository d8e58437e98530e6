"""The block verification kernel against the plain one."""

from __future__ import annotations

import itertools
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.block_verify import block_verify
from mtrun.kernels.metal.block_verify import SOURCE, metal_block_verify
from support.metal_emulator.emulator import Emulator
from support.metal_emulator.faults import MISMATCH, RACE, RANGE, Fault, Runner, assert_caught

SHAPES = ((1, 5, 32), (2, 2, 32), (3, 70, 64), (8, 130, 1024), (4, 33, 96))  # D, U, threads
BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))


def compare(p: Any, q: Any, drafted: Any, coins: Any, threads: int, runner: Runner) -> int:
    rows = [mx.array(np.array(values, dtype=np.float32)) for values in (p, q)]
    rest = mx.array(np.array(drafted, dtype=np.int32)), mx.array(np.array(coins, dtype=np.float32))
    tau, replacement = metal_block_verify(*rows, *rest, threads=threads, kernel=runner(SOURCE))
    expected_tau, expected = block_verify(*rows, *rest)
    np.testing.assert_array_equal(np.array(tau), np.array(expected_tau))
    np.testing.assert_allclose(np.array(replacement), np.array(expected), atol=1e-6)
    return int(tau.item())


def random_path(seed: int, depth: int, slots: int) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(slots, 0.4), size=(2, depth))
    q[:] = (p + q) / 2  # near enough that some paths are kept
    return p, q, [rng.choice(slots, p=row) for row in q], rng.random(depth)


def check(runner: Runner) -> None:
    edges(runner)
    for seed, (depth, slots, threads) in itertools.product(range(4), SHAPES):
        compare(*random_path(seed, depth, slots), threads, runner)


def edges(runner: Runner) -> None:
    same = [[0.125, 0.125, 0.75]] * 3
    assert compare(same, same, [0, 1, 2], [BELOW_ONE] * 3, 32, runner) == 3
    p, q = [[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]
    assert compare(p, q, [1, 0], [0.0, 0.0], 32, runner) == 0  # a draft of probability 0 ends the path
    p, q = [[0.5, 0.5], [0.5, 0.5]], [[0.75, 0.25], [0.25, 0.75]]
    assert compare(p, q, [0, 0], [BELOW_ONE, 0.9], 32, runner) == 2  # a later success overrides
    p, q = [[0.9, 0.1], [0.25, 0.75]], [[0.3, 0.7], [0.5, 0.5]]
    assert compare(p, q, [0, 0], [0.0, 0.75], 32, runner) == 1  # w_1 stays 1, so h_2 is 1/2 and not 3/2
    compare(p, [[0.3, 0.7], [1.0, 0.0]], [0, 1], [0.0, 0.0], 32, runner)  # q(v) = 0: its ratio counts as 0


@pytest.mark.parametrize(("depth", "slots", "threads"), SHAPES)
def test_a_path_is_judged_as_by_the_plain_kernel(depth: int, slots: int, threads: int, runner: Runner) -> None:
    taus = {compare(*random_path(seed, depth, slots), threads, runner) for seed in range(6)}
    assert len(taus) > 1  # the draws keep and reject


def test_edges(runner: Runner) -> None:
    edges(runner)


def test_the_checks_that_faults_meet_pass_without_one(runner: Runner) -> None:
    check(runner)


FAULTS = (
    Fault("one draft too many", "i < depth", "i <= depth", RANGE),
    Fault("another draft's coin", "row == 0 ? depth - 1 : row - 1", "row", MISMATCH),
    Fault("ratios above 1 are saved up", "min(path * ratio, 1.0f)", "path * ratio", MISMATCH),
    Fault("a coin of 0 keeps anything", "coins[decided] <", "coins[decided] <=", MISMATCH),
    Fault("each simdgroup its own surplus",
          "group_sum(part, scratch, lane, simdgroup, simdgroups)", "simd_sum(part)", f"{MISMATCH}|{RACE}"),
    Fault("the draft row's first slot", "target - q[start + i]", "target - q[start]", MISMATCH),
    Fault("every row at the weight of the first", "  if (i == row) weight = path;\n", "", MISMATCH),
    Fault("the total before every part is there",
          "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  float total", "  float total",
          f"{RACE}|is read before it was written"),
    Fault("every thread decides", "if (thread_index == 0) {", "{", RACE),
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_seeded_fault_is_caught(fault: Fault, emulator: Emulator) -> None:
    assert_caught(fault, (SOURCE,), check, emulator)


def test_what_it_cannot_serve_is_refused() -> None:
    rows, slots, coins = mx.zeros((2, 4)), mx.zeros((2,), dtype=mx.int32), mx.zeros((2,))
    with pytest.raises(ValueError, match="must share their slots"):
        metal_block_verify(rows, mx.zeros((3, 4)), slots, coins)
    with pytest.raises(ValueError, match="must be float32"):
        metal_block_verify(rows, rows.astype(mx.bfloat16), slots, coins)
    with pytest.raises(ValueError, match=r"drafted must be \[2\]"):
        metal_block_verify(rows, rows, slots[:1], coins)
    with pytest.raises(ValueError, match="multiple of 32"):
        metal_block_verify(rows, rows, slots, coins, threads=0)
