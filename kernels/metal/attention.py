"""Attention of a few new rows over a long KV cache, split over the keys: two launches, float32 inside.

The reference is `mx.fast.scaled_dot_product_attention` with a causal mask over the first `length` keys.
"""

from __future__ import annotations

import mlx.core as mx

from mtrun.kernels.metal.source import PRELUDE, SIMD, MetalKernel, MetalSource, build, check_threads, text

SPLIT = MetalSource(
    name="attention_split",
    inputs=("queries", "keys", "values", "scale", "length"),
    outputs=("out", "best", "sum"),
    body=text("attention_split"),
    header=PRELUDE,
    row_contiguous=False,
)
COMBINE = MetalSource(
    name="attention_combine",
    inputs=("out", "best", "sum"),
    outputs=("mixed",),
    body=text("attention_combine"),
    header=PRELUDE,
)
MOST_ROWS = 8
MOST_DIM = 256
SPLIT_THREADS = 256  # eight simdgroups share their states in 8 * DIM floats of threadgroup memory
KEYS_A_PART = 256
MOST_PARTS = 32


def metal_attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    *,
    scale: float,
    length: int | None = None,
    parts: int | None = None,
    threads: int = SPLIT_THREADS,
    kernels: tuple[MetalKernel, MetalKernel] | None = None,
) -> mx.array:
    """[1, H, M, D] attention of the newest M of `length` tokens, row i over the keys up to length - M + i. Lazy.

    queries: [1, H, M, D], 1 <= M <= 8, D a multiple of 32 up to 256. keys, values: [1, G, S, D] with H a multiple of G,
    of one dtype float32, float16 or bfloat16; any strides, so a cache goes in whole and `length` (default S, M to S)
    says how much of it counts. parts: over how many stretches of keys the work is split. kernels stands in for
    `build(SPLIT), build(COMBINE)`. Raises ValueError for what it cannot serve.
    """
    _check_shapes(queries, keys, values)
    length = keys.shape[2] if length is None else length
    _, heads, rows, dim = queries.shape
    if not rows <= length <= keys.shape[2]:
        raise ValueError(f"attention: length={length} must be from {rows} to the {keys.shape[2]} keys of the cache.")
    check_threads("attention", threads, SPLIT_THREADS)
    parts = min(-(-length // KEYS_A_PART), MOST_PARTS) if parts is None else parts
    if not 0 < parts <= length:
        raise ValueError(f"attention: parts={parts} must be from 1 to the length {length}.")
    split, combine = kernels or (build(SPLIT), build(COMBINE))
    states = (heads * rows, parts)
    partial = split(
        inputs=[queries, keys, values, float(scale), int(length)],
        template=[("T", queries.dtype), ("ROWS", rows), ("DIM", dim)],
        grid=(threads, heads, parts),
        threadgroup=(threads, 1, 1),
        output_shapes=[(*states, dim), states, states],
        output_dtypes=[mx.float32] * 3,
    )
    (mixed,) = combine(
        inputs=partial,
        template=[("T", queries.dtype), ("DIM", dim)],
        grid=(dim, heads * rows, 1),
        threadgroup=(dim, 1, 1),
        output_shapes=[queries.shape],
        output_dtypes=[queries.dtype],
    )
    return mixed


def _check_shapes(queries: mx.array, keys: mx.array, values: mx.array) -> None:
    if queries.ndim != 4 or keys.ndim != 4 or keys.shape != values.shape:
        raise ValueError(
            f"attention: needs [1, H, M, D] queries and keys and values of one shape [1, G, S, D], not "
            f"{list(queries.shape)}, {list(keys.shape)}, {list(values.shape)}."
        )
    batch, heads, rows, dim = queries.shape
    if batch != 1 or keys.shape[0] != 1 or not 0 < rows <= MOST_ROWS:
        raise ValueError(f"attention: serves one sequence and 1 to {MOST_ROWS} rows, not {batch} and {rows}.")
    if dim % SIMD or not 0 < dim <= MOST_DIM or keys.shape[3] != dim:
        raise ValueError(f"attention: head size {dim} must be a multiple of {SIMD} up to {MOST_DIM}, the keys' too.")
    if not keys.shape[1] or heads % keys.shape[1]:
        raise ValueError(f"attention: {heads} query heads are no multiple of {keys.shape[1]} key heads.")
    kinds = {queries.dtype, keys.dtype, values.dtype}
    if len(kinds) != 1 or queries.dtype not in (mx.float32, mx.float16, mx.bfloat16):
        raise ValueError("attention: queries, keys and values must share float32, float16 or bfloat16.")


def reference(queries: mx.array, keys: mx.array, values: mx.array, *, scale: float, length: int) -> mx.array:
    """The same in MLX's own operation."""
    keys, values = keys[:, :, :length], values[:, :, :length]
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask="causal")
