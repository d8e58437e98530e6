"""What a draft head is trained towards: the trunk's own filtered row, restricted to the draft vocabulary."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np


def filtered_targets(top_logp: np.ndarray, top_p: float, top_k: int) -> np.ndarray:
    """top_logp [N, T] float, the trunk's log-probabilities best first -> [N, T] float32 of the row it samples from.

    top-p keeps while the mass strictly before a token is below it; then top-k; renormalised once.
    """
    probs = np.exp(top_logp.astype(np.float32))
    before = np.cumsum(probs, axis=-1) - probs
    keep = before < top_p
    keep[:, 0] = True
    if top_k > 0:
        keep[:, top_k:] = False
    probs = np.where(keep, probs, 0.0)
    return probs / probs.sum(axis=-1, keepdims=True)


@mx.custom_function
def _soft_cross_entropy(logits: mx.array, slots: mx.array, target: mx.array) -> tuple[mx.array, mx.array]:
    probs = mx.softmax(logits, axis=-1)
    picked = mx.take_along_axis(probs, slots, axis=-1)
    return -mx.sum(target * mx.log(mx.maximum(picked, 1e-20)), axis=-1), probs


@_soft_cross_entropy.vjp
def _soft_cross_entropy_vjp(primals, cotangents, outputs):
    _, slots, target = primals
    probs = outputs[1]
    scale = cotangents[0][:, None]
    mass = mx.sum(target, axis=-1, keepdims=True)
    grad = probs * (mass * scale)
    rows = mx.arange(slots.shape[0])[:, None]
    grad = grad.at[rows, slots].add(-target * scale)
    return grad, mx.zeros_like(slots), mx.zeros_like(target)


def soft_cross_entropy(logits: mx.array, slots: mx.array, target: mx.array) -> mx.array:
    """[N] nats: -sum target * log softmax(logits). logits [N, V'], slots [N, T] int32, target [N, T] (0 where unused).

    The softmax is kept for the backward pass: on CPU the exponentials cost as much as the matrix product.
    """
    outputs: Any = _soft_cross_entropy(logits, slots, target)
    return outputs[0]


def overlap(logits: mx.array, slots: mx.array, target: mx.array) -> mx.array:
    """[N] sum over tokens of min(target, softmax(logits)): the exact law's acceptance before the draft is filtered."""
    picked = mx.take_along_axis(mx.softmax(logits, axis=-1), slots, axis=-1)
    return mx.sum(mx.minimum(picked, target), axis=-1)
