"""Rows: logits to filtered probabilities, the one pipeline for plain decoding, target rows and draft rows.

Order: logits (already penalised and biased) -> temperature -> softmax over the full row ->
top-p, min-p and top-k, each measured on that full row -> intersection -> renormalise once. The argmax always stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mtrun.kernels.arrays import Array, accumulator, argsort, cast, namespace, put, take, total

COMPACT_LIMIT = 256  # a top_k up to this is carried as that many slots; above it rows are dense
BLOCK = 64  # ids in a block of the two-level top-k search of MLX rows
GROUPS = 512  # at least so many groups bound the k-th largest logit of a host row


@dataclass(frozen=True)
class RowFilter:
    """What a request does to a row. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def compact(self, vocab: int) -> bool:
        """Whether a sampled row over `vocab` tokens is carried as top_k slots, not as a dense one."""
        return 0 < self.top_k <= COMPACT_LIMIT and self.top_k < vocab


@dataclass(frozen=True)
class Rows:
    """R probability rows on explicit slots.

    ids: [R, K] int32, ascending in each row; None = dense, slot i is token i.
    probs: [R, K] float, each row sums to 1; a slot that the filter removed holds 0.
    """

    ids: Array | None
    probs: Array

    def __getitem__(self, row: slice) -> Rows:
        return Rows(None if self.ids is None else self.ids[row], self.probs[row])


RowsFilter = Callable[[Any, RowFilter], Rows]  # logits [R, V] -> R filtered rows


def filter_rows(logits: Array, how: RowFilter) -> Rows:
    """Filters logits [R, V] (V > 0, finite or -inf, at least one finite a row) into `Rows` of the same array module.

    Compact (K = top_k) when 0 < top_k <= COMPACT_LIMIT < V, else dense (K = V). Greedy rows are compact with K = 1:
    the lowest id that attains the maximum.
    """
    xp = namespace(logits)
    if how.greedy:
        best = cast(xp.argmax(logits, axis=-1, keepdims=True), xp.int32)  # [R, 1]
        return Rows(best, xp.ones(best.shape, dtype=accumulator(xp)))
    logits = cast(logits, xp.float32)
    if how.compact(logits.shape[-1]):
        return _compact(logits, how)
    return _dense(logits, how)


def _weights(logits: Any, peak: Any, how: RowFilter) -> Any:
    """[R, K] float32 unnormalised probabilities of logits, relative to a row peak [R, 1]: the argmax weighs 1."""
    if isinstance(logits, np.ndarray):
        out = logits - peak
        if how.temperature != 1.0:
            out /= how.temperature
        return np.exp(out, out=out)
    return mx.exp((logits - peak) / how.temperature)


def _compact(logits: Any, how: RowFilter) -> Rows:
    xp = namespace(logits)
    ids = top_ids(logits, how.top_k)  # [R, K], best first
    top = take(logits, ids)
    peak = top[:, :1]
    weights = cast(_weights(top, peak, how), accumulator(xp))
    mass = _mass(logits, peak, how) if how.top_p < 1.0 else None
    kept = xp.where(_kept(weights, mass, how), weights, 0)
    order = argsort(ids)
    return Rows(cast(take(ids, order), xp.int32), normalise(take(kept, order)))


def _mass(logits: Any, peak: Any, how: RowFilter) -> Any:
    """[R, 1] total weight of the full rows [R, V]."""
    if isinstance(logits, np.ndarray):  # a row at a time: its passes stay in the CPU's cache
        return np.array([total(_weights(row, top, how)) for row, top in zip(logits, peak, strict=True)])
    return total(cast(_weights(logits, peak, how), accumulator()))


def _dense(logits: Any, how: RowFilter) -> Rows:
    xp = namespace(logits)
    peak = xp.max(logits, axis=-1, keepdims=True)
    weights = cast(_weights(logits, peak, how), accumulator(xp))
    if how.top_p >= 1.0 and how.min_p <= 0.0 and how.top_k <= 0:
        return Rows(None, normalise(weights))
    order = argsort(-logits)  # ties rank by lower id
    ranked = take(weights, order)
    keep = _kept(ranked, total(weights), how)
    if how.top_k > 0:
        keep = keep & (xp.arange(ranked.shape[-1]) < how.top_k)
    kept = put(xp.zeros_like(weights), order, xp.where(keep, ranked, 0))
    return Rows(None, normalise(kept))


def _kept(ranked: Any, mass: Any, how: RowFilter) -> Any:
    """[R, K] bool for weights in descending order: top-p and min-p, both against the full row's mass and peak."""
    xp = namespace(ranked)
    keep = xp.arange(ranked.shape[-1]) < 1
    inside = ranked >= how.min_p
    if how.top_p < 1.0 and mass is not None:
        before = xp.cumsum(ranked, axis=-1) - ranked
        inside = inside & (before < how.top_p * mass)
    return keep | (inside & (ranked > 0))


def normalise(weights: Any) -> Any:
    """Weights [..., K] to probabilities."""
    return weights / total(weights)


def top_ids(logits: Any, k: int) -> Any:
    """[R, k] ids of the k largest logits of each row [R, V], best first, ties by lower id."""
    return _top_ids_host(logits, k) if isinstance(logits, np.ndarray) else _top_ids_device(logits, k)


def _top_ids_device(logits: mx.array, k: int) -> mx.array:
    """Two levels: the k blocks of BLOCK neighbouring ids that come first by (maximum, lower block) hold the k ids that
    come first by (logit, lower id), so only k * BLOCK candidates are sorted. Small or indivisible rows are sorted
    whole.
    """
    rows, vocab = logits.shape
    blocks = vocab // BLOCK
    if vocab % BLOCK or blocks <= 2 * k:
        return mx.argsort(-logits, axis=-1)[:, :k]
    maxima = mx.max(logits.reshape(rows, blocks, BLOCK), axis=-1)  # [R, blocks]
    chosen = mx.sort(mx.argsort(-maxima, axis=-1)[:, :k], axis=-1)  # [R, k], so that candidates ascend by id
    candidates = (chosen[:, :, None] * BLOCK + mx.arange(BLOCK)).reshape(rows, k * BLOCK)
    values = mx.take_along_axis(logits, candidates, axis=-1)
    best = mx.argsort(-values, axis=-1)[:, :k]
    return mx.take_along_axis(candidates, best, axis=-1)


def _top_ids_host(logits: np.ndarray, k: int) -> np.ndarray:
    """The k-th largest of group maxima is a bound that at least k logits of the row reach: only those are sorted.

    A group is every `groups`-th id, so that the maxima are one vectorised pass. Small rows are sorted whole.
    """
    rows, vocab = logits.shape
    groups = max(GROUPS, 8 * k)  # so many that few groups hold two of the first k
    if vocab < 4 * groups:
        return argsort(-logits)[:, :k]
    deep = vocab // groups
    maxima = logits[:, : deep * groups].reshape(rows, deep, groups).max(axis=1)
    bounds = np.partition(maxima, groups - k, axis=-1)[:, groups - k]
    out = np.empty((rows, k), dtype=np.int64)
    for best, row, bound in zip(out, logits, bounds, strict=True):
        candidates = np.flatnonzero(row >= bound)  # ascending, so that a stable sort ranks ties by lower id
        best[:] = candidates[argsort(-row[candidates])[:k]]
    return out


def draw(weights: Any, uniform: Any) -> Any:
    """Slots [...] int32 drawn from weights [..., K] (not all 0) by inverse CDF at uniforms [...] in [0, 1).

    A uniform of shape [1] serves every row. A slot of weight 0 is never drawn: the slot is the first of positive weight
    with u * total < cdf, and the last of positive weight where rounding brings u * total up to the total. The weight is
    asked for beside the CDF because a parallel scan may give a slot of weight 0 another last bit than its neighbour.
    """
    xp = namespace(weights)
    cdf = xp.cumsum(weights, axis=-1)
    positive = weights > 0
    reached = positive & (uniform[..., None] * cdf[..., -1:] < cdf)
    last = xp.max(xp.where(positive, xp.arange(weights.shape[-1]), 0), axis=-1)
    return cast(xp.where(xp.any(reached, axis=-1), xp.argmax(reached, axis=-1), last), xp.int32)
