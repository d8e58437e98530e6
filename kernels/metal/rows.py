"""Compact filtered rows in one launch: temperature, softmax over the full row, top-k with top-p and min-p.

The reference is `mtrun.kernels.rows.filter_rows`; the kernel adds what laws and reports ask of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mtrun.kernels.metal.source import MetalKernel, MetalSource, build, check_rows, check_threads, text
from mtrun.kernels.rows import COMPACT_LIMIT, RowFilter, Rows, filter_rows

SOURCE = MetalSource(
    name="rows",
    inputs=("logits", "temperature", "top_p", "min_p", "top_k"),
    outputs=("ids", "probs", "peak", "entropy", "total"),
    body=text("rows"),
    header=text("reduce") + text("rows_header"),
)


@dataclass(frozen=True)
class SummedRows:
    """R filtered rows and three numbers about each, all float32."""

    rows: Rows  # ids [R, K] int32 ascending, probs [R, K]
    peak: mx.array  # [R] the largest probability
    entropy: mx.array  # [R] nats, of the filtered row
    total: mx.array  # [R] sum of exp((logit - largest logit) / temperature) over the full row, at least 1


def metal_rows(
    logits: mx.array, how: RowFilter, *, threads: int = 512, kernel: MetalKernel | None = None
) -> SummedRows:
    """Filters logits [R, V] (any float dtype; finite or -inf, one finite a row at least) to K = how.top_k slots. Lazy.

    Raises ValueError for rows that `filter_rows` does not carry as slots: greedy, no top_k, a top_k over 256, or one
    that is not below V. kernel stands in for `build(SOURCE)`.
    """
    if how.greedy or not 0 < how.top_k <= COMPACT_LIMIT:
        raise ValueError(f"rows: needs a temperature above 0 and top_k from 1 to {COMPACT_LIMIT}, not {how}.")
    logits = logits.astype(mx.float32)
    count, vocab = check_rows("rows", "logits", logits)
    check_threads("rows", threads)
    if how.top_k >= vocab:
        raise ValueError(f"rows: top_k={how.top_k} must be below the {vocab} logits of a row.")
    slots = (count, how.top_k)
    ids, probs, peak, entropy, total = (kernel or build(SOURCE))(
        inputs=[logits, float(how.temperature), float(how.top_p), float(how.min_p), int(how.top_k)],
        grid=(threads * count, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[slots, slots, (count,), (count,), (count,)],
        output_dtypes=[mx.int32, mx.float32, mx.float32, mx.float32, mx.float32],
    )
    return SummedRows(Rows(ids, probs), peak, entropy, total)


def reference(logits: mx.array, how: RowFilter) -> SummedRows:
    """The same in plain MLX operations, on the dtypes of `filter_rows`."""
    rows = filter_rows(logits, how)
    p: Any = rows.probs
    entropy = -mx.sum(p * mx.log(mx.where(p > 0, p, 1)), axis=-1)
    logits = logits.astype(mx.float32)
    weights = mx.exp((logits - mx.max(logits, axis=-1, keepdims=True)) / how.temperature)
    return SummedRows(rows, mx.max(p, axis=-1), entropy, mx.sum(weights.astype(p.dtype), axis=-1))
