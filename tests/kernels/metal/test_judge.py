"""The judge kernel against the laws themselves, on float32 blocks."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.metal.judge import LAWS, SOURCE, Verdict, metal_judge
from mtrun.runtime.acceptance import align
from mtrun.runtime.acceptance.cascade import RULES
from mtrun.runtime.acceptance.law import AcceptanceLaw, Block
from mtrun.runtime.acceptance.table import build_law
from support.metal_emulator.emulator import Emulator
from support.metal_emulator.faults import MISMATCH, RACE, RANGE, Fault, Runner, assert_caught

SHAPES = ((1, 1, 32), (3, 70, 64), (2, 1030, 1024), (5, 33, 96))  # D, U, threads


def law_of(name: str, knob: float, eps: float) -> AcceptanceLaw:
    if name in RULES:
        return build_law("cascade", rule=name, alpha=knob)
    return build_law(name, threshold=knob, eps=eps) if name != "exact" else build_law(name)


def block(*rows: Any) -> Block:
    p, q, drafted, coins = (np.array(values) for values in rows)
    floats = (mx.array(values.astype(np.float32)) for values in (p, q))
    return Block(*floats, mx.array(drafted.astype(np.int32)), mx.array(coins.astype(np.float32)))


def random_block(depth: int, slots: int) -> Block:
    """Filtered rows are full of zeros; drafts come from q, as everywhere."""
    rng = np.random.default_rng(depth * slots)
    p, q = rng.dirichlet(np.full(slots, 0.3), size=(2, depth))
    for rows in (p, q):
        rows[(rng.random(rows.shape) < 0.4) & (rows < rows.max(axis=1, keepdims=True))] = 0
        rows /= rows.sum(axis=1, keepdims=True)
    return block(p, q, [rng.choice(slots, p=row) for row in q], rng.random(depth))


# The example of the design: A = {0, 1}, eta = .6, coin 1/10 for the draft 2, replacement (2, 1, 0) / 3.
TOKEN_EXAMPLE = ([0.6, 0.3, 0.1], [0.2, 0.2, 0.6])
EDGES = (
    ("tokenv3", 0.6, 1.0, block([TOKEN_EXAMPLE[0]] * 2, [TOKEN_EXAMPLE[1]] * 2, [2, 2], [0.09, 0.11])),
    ("exact", 0.0, 1.0, block([[0.5, 0.5, 0]], [[0.25, 0.25, 0.5]], [2], [0.0])),  # coin 0 keeps no token of p = 0
    ("exact", 0.0, 1.0, block([[0.5, 0.5]], [[0.5, 0.5]], [1], [0.99])),  # nothing left over: p replaces
    ("exact", 0.0, 1.0, block([[0.5, 0.5]], [[1.0, 0.0]], [1], [0.0])),  # q(v) = 0 breaks the contract: never kept
    ("typical", 1.0, 0.25, block([[0.5, 0.25, 0.25]], [[0.2, 0.4, 0.4]], [1], [0.0])),  # p(v) at the cap: not typical
    ("tokenv2", 0.9, 1.0, block([[0.5, 0.5, 0]], [[0.2, 0.2, 0.6]], [2], [0.4])),  # p(v) = 0 is never in the keep set
    ("tokenv1", 0.0, 1.0, block([[0.9, 0.1]], [[0.5, 0.5]], [0], [0.3])),  # nothing kept without a coin: the exact law
    ("opt", 0.25, 1.0, block([[0.9, 0.1]], [[0.1, 0.9]], [1], [0.5])),
    ("opt", 0.25, 1.0, block([[0.6, 0.4]], [[0.4, 0.6]], [1], [0.9])),
)


def compare(law: str, knob: float, eps: float, given: Block, threads: int, runner: Runner) -> Verdict:
    rows: list[Any] = [given.p, given.q, given.drafted, given.coins]
    got = metal_judge(*rows, law=law, knob=knob, eps=eps, threads=threads, kernel=runner(SOURCE))
    expected = law_of(law, knob, eps).judge(given)
    np.testing.assert_array_equal(np.array(got.deferred), np.array(expected.deferred))
    np.testing.assert_array_equal(np.array(got.kept), np.array(expected.kept))
    np.testing.assert_allclose(np.array(got.replacement), np.array(expected.replacement), atol=1e-6)
    np.testing.assert_allclose(np.array(got.divergence), np.array(align.divergence(given.p, given.q)), atol=1e-6)
    np.testing.assert_array_equal(np.array(got.target_mass), np.array(given.at(given.p)))
    np.testing.assert_array_equal(np.array(got.draft_mass), np.array(given.at(given.q)))
    return got


def check(runner: Runner) -> None:
    for law, knob, eps, given in EDGES:
        compare(law, knob, eps, given, 32, runner)
    for law in LAWS:
        for depth, slots, threads in SHAPES:
            compare(law, 0.3, 0.9, random_block(depth, slots), threads, runner)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("depth", "slots", "threads"), SHAPES)
def test_every_law_judges_as_itself(law: str, depth: int, slots: int, threads: int, runner: Runner) -> None:
    for knob in (0.05, 0.9):
        compare(law, knob, 0.9, random_block(depth, slots), threads, runner)


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge[0])
def test_edges(edge: tuple[str, float, float, Block], runner: Runner) -> None:
    compare(*edge, 32, runner)


def test_the_token_example_by_hand(runner: Runner) -> None:
    got = compare(*EDGES[0], 32, runner)
    assert got.keep.tolist() == [True, False]
    np.testing.assert_allclose(np.array(got.replacement)[1], [0.36, 0.18, 0], atol=1e-7)


def test_each_position_is_judged_for_itself(runner: Runner) -> None:
    """keep does not stop at the first rejection; kept does."""
    rows = [[0.9, 0.1]] * 3
    given = block(rows, rows[::-1], [0, 0, 0], [0.1, 0.1, 0.1])
    given = Block(given.p, mx.array([[0.9, 0.1], [0.1, 0.9], [0.9, 0.1]]), mx.array([0, 1, 0]), given.coins * 5)
    got = compare("exact", 0.0, 1.0, given, 32, runner)
    assert (got.keep.tolist(), got.kept.item()) == ([True, False, True], 1)


def test_the_checks_that_faults_meet_pass_without_one(runner: Runner) -> None:
    check(runner)


FAULTS = (
    Fault("one slot too many", "i < slots; i += threads) {\n  float target = p[start + i];\n  float draft",
          "i <= slots; i += threads) {\n  float target = p[start + i];\n  float draft", f"{RANGE}|{MISMATCH}"),
    Fault("scratch used again at once", "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  return most;",
          "  return most;", RACE),
    Fault("the total before every part is there",
          "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  float total", "  float total",
          f"{RACE}|is read before it was written"),
    Fault("the first row's drafts", "replacement_weight(LAW, target, q[start + i], level, eta);",
          "replacement_weight(LAW, target, q[i], level, eta);", MISMATCH),
    Fault("every thread decides", "if (thread_index == 0) {\n  uint at", "{\n  uint at", RACE),
    Fault("typical not strict", "return p > level;", "return p >= level;", MISMATCH),
    Fault("tokenv2 off the support", " && p > 0", "", MISMATCH),
    Fault("a coin of 0 keeps anything", "coins[position] < chance", "coins[position] <= chance", MISMATCH),
    Fault("an empty replacement", "heaviest > 0 ? weight : target", "weight", MISMATCH),
    Fault("the deferred coin is the exact law's", "float pi = eta * target;", "float pi = target;", MISMATCH),
    Fault("the residual of the exact law", "max(deferred_part - q, 0.0f)", "max(p - q, 0.0f)", MISMATCH),
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_seeded_fault_is_caught(fault: Fault, emulator: Emulator) -> None:
    assert_caught(fault, (SOURCE,), check, emulator)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"law": "tokenv9"}, "is none of exact, typical"),
        ({"threads": 100}, "multiple of 32"),
        ({"q": mx.zeros((2, 5))}, "must share their slots"),
        ({"p": mx.zeros((2, 4), dtype=mx.float16)}, "must be float32"),
        ({"coins": mx.zeros((3,))}, r"coins must be \[2\]"),
        ({"drafted": mx.zeros((2, 1), dtype=mx.int32)}, r"drafted must be \[2\]"),
    ],
)
def test_what_it_cannot_serve_is_refused(changes: dict[str, Any], words: str) -> None:
    rows = {"p": mx.zeros((2, 4)), "q": mx.zeros((2, 4)), "drafted": mx.zeros((2,), dtype=mx.int32)}
    with pytest.raises(ValueError, match=words):
        metal_judge(**{**rows, "coins": mx.zeros((2,)), "law": "exact", **changes})
