"""What a draft head is trained towards: the trunk's own filtered row, restricted to the draft vocabulary."""

from __future__ import annotations

from collections.abc import Callable
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


def draft_loss(overlap_share: float) -> Callable[[mx.array, mx.array, mx.array], mx.array]:
    """The loss [N] of logits [N, V'], slots [N, T] int32 and target [N, T] (0 where unused):

    (1 - overlap_share) * (-sum target * log softmax(logits)) + overlap_share * (1 - sum min(target, softmax(logits))).

    Cross-entropy (nats) spreads the draft over all that the head cannot tell apart; the second term is the exact law's
    rejection rate itself (total variation, DistillSpec, arXiv 2310.08461) and gathers it again. It hardly moves a token
    that the draft gives no mass, so it comes beside the first or after it.

    The softmax is kept for the backward pass: on CPU the exponentials cost as much as the matrix product.
    """

    @mx.custom_function
    def loss(logits: mx.array, slots: mx.array, target: mx.array) -> tuple[mx.array, mx.array]:
        probs = mx.softmax(logits, axis=-1)
        picked = mx.take_along_axis(probs, slots, axis=-1)
        entropy = -mx.sum(target * mx.log(mx.maximum(picked, 1e-20)), axis=-1)
        rejected = 1.0 - mx.sum(mx.minimum(target, picked), axis=-1)
        return (1.0 - overlap_share) * entropy + overlap_share * rejected, probs

    @loss.vjp
    def gradient(primals, cotangents, outputs):
        _, slots, target = primals
        probs = outputs[1]
        scale = cotangents[0][:, None]
        picked = mx.take_along_axis(probs, slots, axis=-1)
        short = mx.where(picked < target, picked, 0.0)  # min(target, picked) moves with picked only here
        wanted = (1.0 - overlap_share) * target + overlap_share * short  # [N, T]
        grad = probs * (mx.sum(wanted, axis=-1, keepdims=True) * scale)
        rows = mx.arange(slots.shape[0])[:, None]
        return grad.at[rows, slots].add(-wanted * scale), mx.zeros_like(slots), mx.zeros_like(target)

    def of(logits: mx.array, slots: mx.array, target: mx.array) -> mx.array:
        outputs: Any = loss(logits, slots, target)
        return outputs[0]

    return of


def overlap(logits: mx.array, slots: mx.array, target: mx.array) -> mx.array:
    """[N] sum over tokens of min(target, softmax(logits)): the exact law's acceptance before the draft is filtered."""
    picked = mx.take_along_axis(mx.softmax(logits, axis=-1), slots, axis=-1)
    return mx.sum(mx.minimum(picked, target), axis=-1)
