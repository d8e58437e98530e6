"""Limits between laws, and the two worked examples of what a deferred token means."""

import numpy as np
import pytest

from mtrun.kernels.arrays import evaluate
from mtrun.runtime.acceptance.cascade import CascadeLaw, token_rule
from mtrun.runtime.acceptance.exact import ExactLaw
from mtrun.runtime.acceptance.synthetic import SyntheticLaw
from mtrun.runtime.acceptance.typical import TypicalLaw, TypicalPiLaw, entropy


def whole(law, p, q, block, coins=None):
    """Every token drafted once, with all kept (coin 0) or given coins: deferral and replacement of each."""
    size = len(p)
    coins = np.zeros(size) if coins is None else coins
    return law.judge(block(np.tile(p, (size, 1)), np.tile(q, (size, 1)), np.arange(size), coins))


def keeps(law, p, q, coins, block):
    out = [law.judge(block(p, q, v, coin)).kept for v in np.flatnonzero(q) for coin in coins]
    evaluate(*out)
    return [each.item() for each in out]


def test_a_deferred_token_runs_algorithm_6_not_the_exact_law(block):
    row = np.array([0.5, 0.25, 0.25])
    law = CascadeLaw("tokenv3", 0.0)
    assert law.judge(block(row, row, 1, 0.5 - 1e-14)).kept.item() == 1
    assert law.judge(block(row, row, 1, 0.5)).kept.item() == 0


def test_worked_example_of_tokenv3(block):
    p, q, law = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.2, 0.6]), CascadeLaw("tokenv3", 0.6)
    judged = whole(law, p, q, block)
    assert judged.deferred.tolist() == [False, False, True]
    assert law.judge(block(p, q, 2, 0.1 - 1e-14)).kept.item() == 1
    assert law.judge(block(p, q, 2, 0.1 + 1e-14)).kept.item() == 0
    weights = np.array(judged.replacement)[2]
    np.testing.assert_allclose(weights / weights.sum(), [2 / 3, 1 / 3, 0], atol=1e-15)
    emitted = q * [1, 1, 0.1] + 0.6 * 0.9 * weights / weights.sum()
    np.testing.assert_allclose(emitted, [0.56, 0.38, 0.06], atol=1e-15)
    assert (q * [1, 1, 0.1]).sum() == pytest.approx(0.46)


def test_an_empty_keep_set_is_the_exact_law(pairs, block, xp):
    for p, q in pairs(20, 5, seed=1):
        for v, coin in [(int(q.argmax()), 0.3), (int(q.argmax()), 0.9)]:
            one = block(p, q, v, coin)
            ours, exact = token_rule(xp.zeros((1, 5), dtype=xp.bool_), one), ExactLaw().judge(one)
            assert ours.kept.item() == exact.kept.item()
            assert ours.deferred.tolist() == [True]
            np.testing.assert_allclose(np.array(ours.replacement), np.array(exact.replacement), atol=1e-15)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.95])
def test_tokenv2_at_alpha_times_the_peak_is_tokenv3(alpha, pairs, block):
    for p, q in pairs(20, 5, seed=2):
        two = whole(CascadeLaw("tokenv2", float(alpha * p.max())), p, q, block)
        three = whole(CascadeLaw("tokenv3", alpha), p, q, block)
        assert two.deferred.tolist() == three.deferred.tolist()
        np.testing.assert_allclose(np.array(two.replacement), np.array(three.replacement), atol=1e-15)


def test_tokenv3_keep_set_is_a_min_p_set(pairs, block):
    for p, q in pairs(20, 5, seed=3):
        judged = whole(CascadeLaw("tokenv3", 0.8), p, q, block)
        assert (~np.array(judged.deferred)).tolist() == (p / p.max() >= 1 - 0.8).tolist()


def test_tokenv2_with_alpha_above_the_peak_keeps_the_support_and_no_more(block):
    p, q = np.array([0.5, 0.5, 0.0, 0.0]), np.full(4, 0.25)
    assert whole(CascadeLaw("tokenv2", 0.9), p, q, block).deferred.tolist() == [False, False, True, True]


def test_one_hot_drafts_are_kept_inside_the_keep_set_and_exact_outside(pairs, block):
    law, coins = CascadeLaw("tokenv3", 0.5), [0.0, 0.1, 0.3, 0.6, 0.99]
    for p, _ in pairs(20, 5, seed=4):
        for v in range(5):
            q = np.eye(5)[v]
            if p[v] >= 0.5 * p.max():
                assert keeps(law, p, q, coins, block) == [1] * 5
            else:
                assert keeps(law, p, q, coins, block) == keeps(ExactLaw(), p, q, coins, block)
                exact = whole(ExactLaw(), p, q, block)
                np.testing.assert_allclose(
                    np.array(whole(law, p, q, block).replacement)[v], np.array(exact.replacement)[v], atol=1e-15
                )


def test_tokenv3_at_alpha_zero_differs_from_the_target_by_the_drafts_mass_on_the_mode(pairs, reference):
    law = CascadeLaw("tokenv3", 0.0)
    for p, q in pairs(30, 5, seed=5):
        mode = int(p.argmax())
        distance = np.maximum(reference(law, p, q).emitted - p, 0).sum()
        assert distance == pytest.approx(q[mode] * (1 - p[mode]), abs=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.99])
def test_opt_never_defers_to_a_greedy_draft(alpha, pairs, block):
    for p, _ in pairs(20, 5, seed=6):
        for v in range(5):
            judged = CascadeLaw("opt", alpha).judge(block(p, np.eye(5)[v], v, 0.999))
            assert judged.kept.item() == 1
            assert judged.deferred.tolist() == [False]


@pytest.mark.parametrize("rule", ["tokenv2", "tokenv3"])
def test_every_token_at_the_peak_is_kept_at_alpha_zero(rule, block):
    p, q = np.array([0.4, 0.4, 0.2]), np.array([0.1, 0.3, 0.6])
    assert whole(CascadeLaw(rule, 0.0), p, q, block).deferred.tolist() == [False, False, True]


def test_typical_pi_emits_what_typical_emits_with_never_fewer_keeps(pairs, reference):
    for p, q in pairs(40, 6, seed=13):
        plain, through_pi = reference(TypicalLaw(0.6), p, q), reference(TypicalPiLaw(0.6), p, q)
        np.testing.assert_allclose(plain.emitted, through_pi.emitted, atol=1e-15)
        assert (through_pi.keep >= plain.keep).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_entropy_of_filtered_rows_is_finite_and_right(pairs, xp, dtype):
    slack = 1e-13 if dtype == "float64" else 1e-6
    dtype = getattr(xp, dtype)
    for p, _ in pairs(20, 6, seed=14):
        inside = p[p > 0]
        expected = -(inside * np.log(inside)).sum()
        got = entropy(xp.array(p[None], dtype=dtype)).item()
        assert got == pytest.approx(expected, abs=slack)
    assert entropy(xp.array([[1.0, 0.0, 0.0]], dtype=dtype)).item() == 0


def test_typical_floor_is_sharp_in_float64(block):
    """The keep set turns within 1e-12 of threshold exp(-H), not within the float32 precision of MLX's own exp."""
    p = np.array([0.55, 0.25, 0.2])
    turn = float(p[1] * np.exp(-(p * np.log(p)).sum()))
    kept = [TypicalLaw(turn * (1 + nudge)).judge(block(p, p, 1, 0.5)).kept.item() for nudge in (-1e-12, 1e-12)]
    assert kept == [1, 0]


def test_typical_is_strict(block):
    assert TypicalLaw(1.0, 1.0).judge(block([1.0, 0.0], [1.0, 0.0], 0, 0.0)).kept.item() == 0
    assert TypicalLaw(0.999, 0.25).judge(block([0.25, 0.75], [0.5, 0.5], 0, 0.0)).kept.item() == 0


def test_synthetic_keeps_by_its_rate_alone(block):
    p, q = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    assert SyntheticLaw(1.0).judge(block(p, q, 0, np.nextafter(1, 0))).kept.item() == 1
    assert SyntheticLaw(0.0).judge(block(q, q, 0, 0.0)).kept.item() == 0
    half = SyntheticLaw(0.5).judge(block(p, q, 0, 0.5))
    assert (half.kept.item(), half.deferred.tolist(), half.replacement.tolist()) == (0, [True], [[0, 1]])
