"""Rows: logits to filtered probabilities, the one pipeline for plain decoding, target rows and draft rows.

Order: logits (already penalised and biased) -> temperature -> softmax over the full row ->
top-p, min-p and top-k, each measured on that full row -> intersection -> renormalise once. The argmax always stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

COMPACT_LIMIT = 256  # a top_k up to this is carried as that many slots; above it rows are dense
BLOCK = 64  # ids in a block of the two-level top-k search


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


@dataclass(frozen=True)
class Rows:
    """R probability rows on explicit slots.

    ids: [R, K] int32, ascending in each row; None = dense, slot i is token i.
    probs: [R, K] float, each row sums to 1; a slot that the filter removed holds 0.
    """

    ids: mx.array | None
    probs: mx.array

    def __getitem__(self, row: slice) -> Rows:
        return Rows(None if self.ids is None else self.ids[row], self.probs[row])


def accumulator() -> mx.Dtype:
    """float64 where the device has it (CPU), else float32: the dtype in which rows are summed and judged."""
    return mx.float64 if mx.default_device() == mx.Device(mx.cpu) else mx.float32


def filter_rows(logits: mx.array, how: RowFilter) -> Rows:
    """Filters logits [R, V] (V > 0, finite or -inf, at least one finite a row) into `Rows`.

    Compact (K = top_k) when 0 < top_k <= COMPACT_LIMIT < V, else dense (K = V). Greedy rows are compact with K = 1:
    the lowest id that attains the maximum.
    """
    if how.greedy:
        best = mx.argmax(logits, axis=-1, keepdims=True).astype(mx.int32)  # [R, 1]
        return Rows(best, mx.ones(best.shape, dtype=accumulator()))
    logits = logits.astype(mx.float32)
    if 0 < how.top_k <= COMPACT_LIMIT and how.top_k < logits.shape[-1]:
        return _compact(logits, how)
    return _dense(logits, how)


def _weights(logits: mx.array, peak: mx.array, how: RowFilter) -> mx.array:
    """Unnormalised probabilities of logits, relative to a row peak [R, 1]: the argmax weighs 1."""
    return mx.exp((logits - peak) / how.temperature)


def _compact(logits: mx.array, how: RowFilter) -> Rows:
    ids = top_ids(logits, how.top_k)  # [R, K], best first
    top = mx.take_along_axis(logits, ids, axis=-1)
    peak = top[:, :1]
    weights = _weights(top, peak, how).astype(accumulator())
    total = _total(_weights(logits, peak, how).astype(accumulator())) if how.top_p < 1.0 else None
    kept = mx.where(_kept(weights, total, how), weights, 0)
    order = mx.argsort(ids, axis=-1)
    return Rows(_reorder(ids, order).astype(mx.int32), normalise(_reorder(kept, order)))


def _reorder(values: mx.array, order: mx.array) -> mx.array:
    return mx.take_along_axis(values, order, axis=-1)


def _dense(logits: mx.array, how: RowFilter) -> Rows:
    peak = mx.max(logits, axis=-1, keepdims=True)
    weights = _weights(logits, peak, how).astype(accumulator())
    if how.top_p >= 1.0 and how.min_p <= 0.0 and how.top_k <= 0:
        return Rows(None, normalise(weights))
    order = mx.argsort(-logits, axis=-1)  # stable: ties rank by lower id
    ranked = _reorder(weights, order)
    keep = _kept(ranked, _total(weights), how)
    if how.top_k > 0:
        keep = keep & (mx.arange(ranked.shape[-1]) < how.top_k)
    kept = mx.put_along_axis(mx.zeros_like(weights), order, mx.where(keep, ranked, 0), axis=-1)
    return Rows(None, normalise(kept))


def _kept(ranked: mx.array, total: mx.array | None, how: RowFilter) -> mx.array:
    """[R, K] bool for weights in descending order: top-p and min-p, both against the full row's total and peak."""
    keep = mx.arange(ranked.shape[-1]) < 1
    before = mx.cumsum(ranked, axis=-1) - ranked
    inside = ranked >= how.min_p
    if how.top_p < 1.0 and total is not None:
        inside = inside & (before < how.top_p * total)
    return keep | (inside & (ranked > 0))


def normalise(weights: mx.array) -> mx.array:
    """Weights [..., K] to probabilities."""
    return weights / _total(weights)


def _total(weights: mx.array) -> mx.array:
    """[..., 1] sum in slot order: slots of weight 0 change no bit, so compact, trimmed and dense rows cut alike."""
    return mx.cumsum(weights, axis=-1)[..., -1:]


def top_ids(logits: mx.array, k: int) -> mx.array:
    """[R, k] ids of the k largest logits of each row [R, V], best first, ties by lower id.

    Two levels: the k blocks of BLOCK neighbouring ids that come first by (maximum, lower block) hold the k ids that
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


def draw(weights: mx.array, uniform: mx.array) -> mx.array:
    """Slots [...] int32 drawn from weights [..., K] (not all 0) by inverse CDF at uniforms [...] in [0, 1).

    A slot of weight 0 is never drawn: the slot is the first of positive weight with u * total < cdf, and the last of
    positive weight where rounding brings u * total up to the total. The weight is asked for beside the CDF because a
    parallel scan may give a slot of weight 0 another last bit than its neighbour.
    """
    cdf = mx.cumsum(weights, axis=-1)
    positive = weights > 0
    reached = positive & (uniform[..., None] * cdf[..., -1:] < cdf)
    last = mx.max(mx.where(positive, mx.arange(weights.shape[-1]), 0), axis=-1)
    return mx.where(mx.any(reached, axis=-1), mx.argmax(reached, axis=-1), last).astype(mx.int32)
