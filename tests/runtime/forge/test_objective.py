"""The loss, its hand-written gradient, the filtered target and the overlap."""

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.rows import RowFilter, filter_rows
from mtrun.runtime.forge.objective import draft_loss, filtered_targets, overlap


def sample(seed: int, mass: float = 1.0) -> tuple[mx.array, mx.array, mx.array]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (5, 12)).astype(np.float32)
    slots = np.stack([rng.permutation(12)[:4] for _ in range(5)]).astype(np.int32)
    target = rng.dirichlet(np.ones(4), 5).astype(np.float32) * mass
    target[0, 2] = 0.0
    return mx.array(logits), mx.array(slots), mx.array(target)


def plain(share: float):
    def loss(logits: mx.array, slots: mx.array, target: mx.array) -> mx.array:
        logp = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        entropy = -mx.sum(target * mx.take_along_axis(logp, slots, axis=-1), axis=-1)
        return (1 - share) * entropy + share * (1 - overlap(logits, slots, target))

    return loss


@pytest.mark.parametrize("share", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("mass", [1.0, 0.6])
def test_loss_and_gradient_are_those_of_autodiff(mass: float, share: float) -> None:
    logits, slots, target = sample(0, mass)
    scale = mx.array(np.linspace(0.5, 2, 5).astype(np.float32))

    def of(loss):
        return mx.value_and_grad(lambda x: mx.sum(scale * loss(x, slots, target)))(logits)

    (value, grad), (expected, reference) = of(draft_loss(share)), of(plain(share))
    assert np.allclose(value.item(), expected.item(), rtol=1e-5)
    assert np.allclose(np.array(grad), np.array(reference), atol=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.7])
def test_unused_slots_that_repeat_take_no_part(share: float) -> None:
    logits, slots, target = sample(1)
    slots[0, 2] = slots[0, 1]
    grads = mx.grad(lambda x: mx.sum(draft_loss(share)(x, slots, target)))(logits)
    reference = mx.grad(lambda x: mx.sum(plain(share)(x, slots, target)))(logits)
    assert np.allclose(np.array(grads), np.array(reference), atol=1e-6)


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.7, 0), (1.0, 3), (0.8, 4), (0.01, 1)])
def test_targets_are_the_rows_that_the_sampler_draws_from(top_p: float, top_k: int) -> None:
    logits = np.random.default_rng(2).normal(0, 2, (6, 16)).astype(np.float32)
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    order = np.argsort(-logp, axis=-1)
    targets = filtered_targets(np.take_along_axis(logp, order, -1), top_p, top_k)
    dense = np.zeros_like(targets)
    np.put_along_axis(dense, order, targets, -1)
    served = sampler_rows(logits, RowFilter(1.0, top_p, top_k))
    assert np.allclose(dense, served, atol=1e-5)


def sampler_rows(logits: np.ndarray, how: RowFilter) -> np.ndarray:
    rows = filter_rows(mx.array(logits), how)
    probs = np.array(rows.probs)
    if rows.ids is None:
        return probs
    dense = np.zeros_like(logits)
    np.put_along_axis(dense, np.array(rows.ids), probs, -1)
    return dense


def test_overlap_is_one_less_the_total_variation() -> None:
    logits, slots, target = sample(3)
    q = np.array(mx.softmax(logits, axis=-1))
    p = np.zeros_like(q)
    np.put_along_axis(p, np.array(slots), np.array(target), -1)
    expected = np.minimum(p, q).sum(-1)
    assert np.allclose(np.array(overlap(logits, slots, target)), expected, atol=1e-6)
