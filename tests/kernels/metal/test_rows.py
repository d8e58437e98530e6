"""The rows kernel against `filter_rows`: same ids, same probabilities, and the three numbers of a row."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.metal.rows import SOURCE, metal_rows, reference
from mtrun.kernels.rows import RowFilter
from support.metal_emulator.emulator import Emulator
from support.metal_emulator.faults import MISMATCH, RACE, RANGE, Fault, Runner, assert_caught


@dataclass(frozen=True)
class Case:
    name: str
    vocab: int
    how: RowFilter
    threads: int
    rows: int = 2
    absent: float = 0.0  # share of logits at -inf
    step: float = 0.0  # logits are rounded to multiples of this, which makes ties; 0 = not rounded

    def logits(self) -> mx.array:
        rng = np.random.default_rng(len(self.name))
        logits = (3 * rng.standard_normal((self.rows, self.vocab))).astype(np.float32)
        if self.step:
            logits = np.round(logits / self.step) * self.step
        logits[rng.random(logits.shape) < self.absent] = -np.inf
        logits[:, self.vocab // 2] = 0  # one finite at least
        return mx.array(logits.astype(np.float32))


CASES = (
    Case("the best alone", 7, RowFilter(1.0, 1.0, 1), 32),
    Case("an odd width", 301, RowFilter(0.8, 0.9, 20, 0.01), 64, rows=3),
    Case("most slots", 257, RowFilter(1.5, 0.95, 256), 128),
    Case("more threads than logits", 50, RowFilter(1.0, 1.0, 3), 1024),
    Case("wide", 3001, RowFilter(0.7, 0.8, 40), 512),
    Case("ties", 500, RowFilter(1.0, 0.5, 30), 96, step=2.0),
    Case("ties at the cut", 320, RowFilter(1.0, 1.0, 25), 64, step=4.0),
    Case("fewer finite than slots", 90, RowFilter(1.0, 0.999, 40), 64, absent=0.85),
    Case("nearly greedy", 130, RowFilter(1e-6, 1.0, 5), 32),
    Case("a floor", 200, RowFilter(1.0, 1.0, 50, 0.2), 160),
    Case("the first token crosses", 200, RowFilter(1.0, 1e-9, 50), 64),
)


def compare(case_logits: mx.array, how: RowFilter, threads: int, runner: Runner) -> None:
    got = metal_rows(case_logits, how, threads=threads, kernel=runner(SOURCE))
    expected = reference(case_logits, how)
    np.testing.assert_array_equal(np.array(got.rows.ids), np.array(expected.rows.ids))
    for ours, theirs in (
        (got.rows.probs, expected.rows.probs),
        (got.peak, expected.peak),
        (got.entropy, expected.entropy),
        (got.total, expected.total),
    ):
        np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=5e-6, atol=5e-7)


def signed_zeros() -> mx.array:
    """-0 and 0 tie, so the lower ids stay whichever sign they have."""
    return mx.array(np.where(np.arange(40) % 3 == 0, 0.0, -0.0).astype(np.float32)[None])


def check(runner: Runner) -> None:
    compare(signed_zeros(), RowFilter(1.0, 1.0, 7), 32, runner)
    for case in CASES:
        compare(case.logits(), case.how, case.threads, runner)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows_are_those_of_filter_rows(case: Case, runner: Runner) -> None:
    compare(case.logits(), case.how, case.threads, runner)


def test_zeros_of_both_signs_tie(runner: Runner) -> None:
    compare(signed_zeros(), RowFilter(1.0, 1.0, 7), 32, runner)
    got = metal_rows(signed_zeros(), RowFilter(1.0, 1.0, 7), threads=32, kernel=runner(SOURCE))
    assert got.rows.ids.tolist() == [list(range(7))]


def test_half_logits_are_read_as_float32(runner: Runner) -> None:
    logits = CASES[1].logits().astype(mx.float16)
    compare(logits, RowFilter(1.0, 1.0, 9), 64, runner)


def test_the_checks_that_faults_meet_pass_without_one(runner: Runner) -> None:
    check(runner)


FAULTS = (
    Fault("no guard at the row's end", "i < last ? logits[start + i] : 0.0f", "logits[start + i]", RANGE),
    Fault(
        "bins are counted before all are cleared",
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  uint decided",
        "  uint decided",
        RACE,
    ),
    Fault(
        "the found bin is read before it is there",
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  threshold |=",
        "  threshold |=",
        "is read before it was written|is a race",
    ),
    Fault(
        "a barrier in a branch",
        "  equal_in[simdgroup] = equal;\n}\nthreadgroup_barrier(mem_flags::mem_threadgroup);",
        "  equal_in[simdgroup] = equal;\nthreadgroup_barrier(mem_flags::mem_threadgroup);\n}",
        "barrier is not reached|simd operation",
    ),
    Fault(
        "a simd operation in a branch",
        "simd_broadcast(ahead + flags, 31)",
        "(flags != 0u ? simd_broadcast(ahead + flags, 31) : 0u)",
        "is not reached by every lane",
    ),
    Fault("ties by higher id", "(other == key && i < j)", "(other == key && i > j)", MISMATCH),
    Fault("one tie too many", "equal_ahead < ties", "equal_ahead <= ties", f"{RACE}|{RANGE}|{MISMATCH}"),
    Fault("slots of another row", "ids[row * k + j]", "ids[j]", "touched by two threadgroups"),
    Fault(
        "slots left out", "j < k; j += threads) {\n  float p", "j + 1 < k; j += threads) {\n  float p", "never written"
    ),
    Fault("top-p of no total", "top_p * whole", "top_p", MISMATCH),
    Fault("negative logits in reverse", "? ~bits :", "? bits :", MISMATCH),
    Fault("signed zeros apart", "value == 0.0f ? 0u : as_type<uint>(value)", "as_type<uint>(value)", MISMATCH),
    Fault(
        "scratch used again at once",
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  return total;",
        "  return total;",
        RACE,
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_seeded_fault_is_caught(fault: Fault, emulator: Emulator) -> None:
    assert_caught(fault, (SOURCE,), check, emulator)


@pytest.mark.parametrize(
    ("how", "shape", "threads", "words"),
    [
        (RowFilter(0.0, 1.0, 5), (1, 64), 64, "temperature above 0"),
        (RowFilter(1.0, 0.9, 0), (1, 64), 64, "top_k from 1 to 256"),
        (RowFilter(1.0, 0.9, 257), (1, 640), 64, "top_k from 1 to 256"),
        (RowFilter(1.0, 0.9, 64), (1, 64), 64, "below the 64 logits"),
        (RowFilter(1.0, 0.9, 5), (64,), 64, "must be"),
        (RowFilter(1.0, 0.9, 5), (0, 64), 64, "must be"),
        (RowFilter(1.0, 0.9, 5), (1, 64), 48, "multiple of 32"),
        (RowFilter(1.0, 0.9, 5), (1, 64), 2048, "up to 1024"),
    ],
)
def test_what_it_cannot_serve_is_refused(how: RowFilter, shape: tuple[int, ...], threads: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        metal_rows(mx.zeros(shape), how, threads=threads)
