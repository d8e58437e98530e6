"""What each law emits at one position, by exact enumeration over the drafted token."""

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.arrays import evaluate, namespace
from mtrun.runtime.acceptance.exact import ExactLaw
from mtrun.runtime.acceptance.law import Block


def divergence(p, q):
    return np.maximum(p - q, 0).sum()


def replacements(law, p, q, block, dtype):
    """[U, U] normalised replacement law for every drafted token, and [U] deferral."""
    size = len(p)
    judged = law.judge(block(np.tile(p, (size, 1)), np.tile(q, (size, 1)), np.arange(size), np.zeros(size), dtype))
    weights = np.array(judged.replacement).astype(float)
    return weights / weights.sum(axis=1, keepdims=True), np.array(judged.deferred)


def certify(law, p, q, keep, block, dtype, slack):
    """The law's own threshold is `keep` within slack: it keeps just below and rejects just above."""
    support = np.flatnonzero(q)
    low = [v for v in support if keep[v] > slack]
    high = [v for v in support if keep[v] < 1 - 2 * slack]
    kept = [law.judge(block(p, q, v, keep[v] * (1 - slack), dtype)).kept for v in low]
    rejected = [law.judge(block(p, q, v, keep[v] + slack, dtype)).kept for v in high]
    evaluate(*kept, *rejected)
    assert [each.item() for each in kept] == [1] * len(low)
    assert [each.item() for each in rejected] == [0] * len(high)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)])
def test_emitted_law_is_the_definition(law, pairs, block, reference, dtype, tolerance):
    for p, q in pairs(18, 5, seed=7):
        expected = reference(law, p, q)
        certify(law, p, q, expected.keep, block, dtype, slack=tolerance)
        replaced, _ = replacements(law, p, q, block, dtype)
        emitted = q * expected.keep + (q * (1 - expected.keep)) @ replaced
        assert np.abs(emitted - expected.emitted).max() <= tolerance


def test_deferral_is_the_definition(law, pairs, block, reference):
    for p, q in pairs(30, 6, seed=8):
        if law.name != "synthetic":
            _, deferred = replacements(law, p, q, block, "float64")
            assert deferred.tolist() == reference(law, p, q).deferred.tolist()


def test_keep_rate_is_one_minus_the_divergence_of_pi_and_q(coin_law, pairs, reference):
    for p, q in pairs(50, 6, seed=9):
        expected = reference(coin_law, p, q)
        assert expected.keep_rate(q) == pytest.approx(1 - divergence(expected.emitted, q), abs=1e-12)


def test_extra_keeps_are_paid_for_in_divergence(law, pairs, reference):
    for p, q in pairs(50, 6, seed=10):
        expected = reference(law, p, q)
        gained = expected.keep_rate(q) - (1 - divergence(p, q))
        assert gained <= divergence(expected.emitted, p) + 1e-12


def test_nothing_off_the_support_of_the_target(inside_law, pairs, block):
    for p, q in pairs(60, 6, seed=11):
        outside = np.flatnonzero((p == 0) & (q > 0))
        keeps = [inside_law.judge(block(p, q, v, 0.0)).kept for v in outside]
        evaluate(*keeps)
        assert all(kept.item() == 0 for kept in keeps)
        replaced, _ = replacements(inside_law, p, q, block, "float64")
        assert not replaced[:, p == 0].any()


def test_a_replacement_row_is_never_empty(law, block):
    """Also where the law cannot reject: p = q, and rows that differ by the last bit."""
    row = np.array([0.1, 0.2, 0.3, 0.4])
    nudged = row.copy()
    nudged[0] = np.nextafter(nudged[0], 0)
    for p, q in [(row, row), (nudged, row), (row, nudged), (np.eye(4)[0], np.eye(4)[0])]:
        judged = law.judge(block(np.tile(p, (4, 1)), np.tile(q, (4, 1)), np.arange(4), np.zeros(4)))
        assert np.isfinite(np.array(judged.replacement)).all()
        assert (np.array(judged.replacement).max(axis=1) > 0).all()


def test_all_positions_at_once_equal_one_by_one(law, pairs, block):
    rng = np.random.default_rng(3)
    rows = pairs(24, 5, seed=12)
    for start in range(0, 24, 4):
        p, q = (np.array(side) for side in zip(*rows[start : start + 4], strict=True))
        drafted = [int(rng.choice(5, p=row)) for row in q]
        coins = rng.random(4)
        whole = law.judge(block(p, q, drafted, coins))
        single = [law.judge(block(p[i], q[i], drafted[i], coins[i])) for i in range(4)]
        keeps = [each.kept.item() for each in single]
        assert whole.kept.item() == [*keeps, 0].index(0)
        assert whole.deferred.tolist() == [each.deferred.item() for each in single]
        assert np.array_equal(np.array(whole.replacement), np.concatenate([np.array(s.replacement) for s in single]))


def test_largest_float32_coin_below_one_keeps_a_certain_draft_in_float32(block):
    coin = np.nextafter(np.float32(1), np.float32(0))
    assert ExactLaw().judge(block([0.5, 0.5], [0.5, 0.5], 0, coin, "float32")).kept.item() == 1
    assert ExactLaw().judge(block([0.0, 1.0], [0.5, 0.5], 0, 0.0, "float32")).kept.item() == 0


def test_a_verdict_is_of_the_kind_of_its_block(law, block, xp):
    judged = law.judge(block([0.5, 0.5], [0.25, 0.75], 0, 0.75))
    assert all(namespace(part) is xp for part in (judged.kept, judged.deferred, judged.replacement))
    assert (judged.kept.dtype, judged.deferred.dtype) == (xp.int32, xp.bool_)


def test_coin_on_the_boundary_rejects(block):
    p, q = [0.25, 0.75], [0.5, 0.5]
    assert ExactLaw().judge(block(p, q, 0, 0.5)).kept.item() == 0
    assert ExactLaw().judge(block(p, q, 0, np.nextafter(0.5, 0))).kept.item() == 1


def test_a_draft_that_q_never_draws_is_rejected_without_nan(law, block):
    judged = law.judge(block([0.5, 0.5], [0.0, 1.0], 0, 0.75))
    assert judged.kept.item() in (0, 1)
    assert np.isfinite(np.array(judged.replacement)).all()


def test_judging_never_synchronises(law, mlx_block, tmp_path):
    """Exporting traces the graph, which refuses any evaluation on the way."""

    def judge(p, q, drafted, coins):
        judged = law.judge(Block(p, q, drafted, coins))
        return judged.kept, judged.deferred, judged.replacement

    one = mlx_block([[0.5, 0.3, 0.2], [0.1, 0.9, 0.0]], [[0.2, 0.2, 0.6], [0.5, 0.25, 0.25]], [2, 0], [0.1, 0.9])
    arguments = (one.p, one.q, one.drafted, one.coins)
    mx.export_function(str(tmp_path / "judge"), judge, *arguments)
