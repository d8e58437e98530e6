"""The glue between projections, two launches a layer: residual add with RMSNorm, and RMSNorm with rotary positions.

The references are `mx.fast.rms_norm` and `mx.fast.rope`; inside, values stay float32 where those round in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from mtrun.kernels.metal.source import MOST_VALUES, PRELUDE, SIMD, MetalKernel, MetalSource, build, check_threads, text

ADD_NORM = MetalSource(
    name="add_norm",
    inputs=("stream", "branch", "weight", "eps"),
    outputs=("joined", "normed"),
    body=text("add_norm"),
    header=text("reduce"),
)
NORM_ROPE = MetalSource(
    name="norm_rope",
    inputs=("queries", "keys", "query_weight", "key_weight", "periods", "offset", "scale", "eps"),
    outputs=("rotated_queries", "rotated_keys"),
    body=text("norm_rope"),
    header=PRELUDE,
)
HEADS_A_GROUP = 4
FLOATS = (mx.float32, mx.float16, mx.bfloat16)


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: pair i of a head's first 2 P values turns by scale * position / periods[i]."""

    periods: mx.array  # [P] float32
    traditional: bool = False  # True: pairs (2i, 2i + 1); False: pairs (i, i + P)
    scale: float = 1.0

    @staticmethod
    def of_base(base: float, dims: int, *, traditional: bool = False, scale: float = 1.0) -> Rotary:
        """The usual periods base^(2i / dims)."""
        return Rotary(mx.power(base, mx.arange(0, dims, 2, dtype=mx.float32) / dims), traditional, scale)


@dataclass(frozen=True)
class HeadNorm:
    """RMSNorm over each head before it turns."""

    query_weight: mx.array  # [D]
    key_weight: mx.array  # [D]
    eps: float


def metal_add_norm(
    stream: mx.array,
    branch: mx.array,
    weight: mx.array,
    eps: float,
    *,
    threads: int = 256,
    kernel: MetalKernel | None = None,
) -> tuple[mx.array, mx.array]:
    """(stream + branch, its RMSNorm) for stream, branch [R, N] and weight [N] of one float dtype. Lazy.

    Raises ValueError for other shapes or mixed dtypes. kernel stands in for `build(ADD_NORM)`.
    """
    if stream.ndim != 2 or 0 in stream.shape or stream.size >= MOST_VALUES:
        raise ValueError(f"add_norm: stream must be [R, N] with under 2^31 values, not {list(stream.shape)}.")
    if branch.shape != stream.shape or weight.shape != stream.shape[1:]:
        raise ValueError(
            f"add_norm: branch {list(branch.shape)} and weight {list(weight.shape)} do not fit stream "
            f"{list(stream.shape)}."
        )
    _check_dtypes("add_norm", stream, branch, weight)
    check_threads("add_norm", threads)
    joined, normed = (kernel or build(ADD_NORM))(
        inputs=[stream, branch, weight, float(eps)],
        template=[("T", stream.dtype)],
        grid=(threads * stream.shape[0], 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[stream.shape, stream.shape],
        output_dtypes=[stream.dtype, stream.dtype],
    )
    return joined, normed


def metal_norm_rope(
    queries: mx.array,
    keys: mx.array,
    offset: int,
    rotary: Rotary,
    norm: HeadNorm | None = None,
    *,
    kernel: MetalKernel | None = None,
) -> tuple[mx.array, mx.array]:
    """([1, H, M, D], [1, G, M, D]): the turned heads of queries [M, H, D] and keys [M, G, D] of projections. Lazy.

    Token i stands at position offset + i. D is even and at least 8; rotary turns 2 P <= D values and leaves the rest.
    Raises ValueError for other shapes or mixed dtypes. kernel stands in for `build(NORM_ROPE)`.
    """
    half = _check_heads(queries, keys, rotary, norm)
    tokens, query_heads, dim = queries.shape
    key_heads = keys.shape[1]
    weights = (queries, queries) if norm is None else (norm.query_weight, norm.key_weight)  # unread without a norm
    turned = (kernel or build(NORM_ROPE))(
        inputs=[queries, keys, *weights, rotary.periods, int(offset), float(rotary.scale), norm.eps if norm else 0.0],
        template=[
            ("T", queries.dtype),
            ("DIM", dim),
            ("ROTATED", 2 * half),
            ("NORM", norm is not None),
            ("TRADITIONAL", rotary.traditional),
        ],
        grid=(SIMD, query_heads + key_heads, tokens),
        threadgroup=(SIMD, HEADS_A_GROUP, 1),
        output_shapes=[(1, query_heads, tokens, dim), (1, key_heads, tokens, dim)],
        output_dtypes=[queries.dtype, queries.dtype],
    )
    return turned[0], turned[1]


def _check_heads(queries: mx.array, keys: mx.array, rotary: Rotary, norm: HeadNorm | None) -> int:
    """P. Raises ValueError unless everything fits."""
    if queries.ndim != 3 or keys.ndim != 3 or 0 in queries.shape + keys.shape:
        raise ValueError(f"norm_rope: needs [M, H, D] and [M, G, D], not {list(queries.shape)}, {list(keys.shape)}.")
    if queries.shape[0] != keys.shape[0] or queries.shape[2] != keys.shape[2]:
        raise ValueError("norm_rope: queries and keys must have the same tokens and head size.")
    dim = queries.shape[2]
    if dim % 2 or dim < 8 or max(queries.size, keys.size) >= MOST_VALUES:
        raise ValueError(f"norm_rope: head size {dim} must be even and at least 8, with under 2^31 values in all.")
    half = rotary.periods.size
    if rotary.periods.shape != (half,) or rotary.periods.dtype != mx.float32 or not 0 < 2 * half <= dim:
        raise ValueError(f"norm_rope: periods must be float32 [P] with 2 P up to the head size {dim}.")
    weights = () if norm is None else (norm.query_weight, norm.key_weight)
    if any(weight.shape != (dim,) for weight in weights):
        raise ValueError(f"norm_rope: the norm's weights must be [{dim}].")
    _check_dtypes("norm_rope", queries, keys, *weights)
    return half


def _check_dtypes(kernel: str, *arrays: mx.array) -> None:
    if len({array.dtype for array in arrays}) != 1 or arrays[0].dtype not in FLOATS:
        raise ValueError(f"{kernel}: arrays must share one dtype, float32, float16 or bfloat16.")


def add_norm_reference(stream: mx.array, branch: mx.array, weight: mx.array, eps: float) -> tuple[mx.array, mx.array]:
    """`metal_add_norm` in MLX's own operations."""
    joined = stream + branch
    return joined, mx.fast.rms_norm(joined, weight, eps)


def norm_rope_reference(
    queries: mx.array, keys: mx.array, offset: int, rotary: Rotary, norm: HeadNorm | None = None
) -> tuple[mx.array, mx.array]:
    """`metal_norm_rope` in MLX's own operations."""
    if norm is not None:
        queries = mx.fast.rms_norm(queries, norm.query_weight, norm.eps)
        keys = mx.fast.rms_norm(keys, norm.key_weight, norm.eps)

    def turn(heads: mx.array) -> mx.array:
        return mx.fast.rope(
            heads.transpose(1, 0, 2)[None],
            2 * rotary.periods.size,
            traditional=rotary.traditional,
            base=None,
            scale=rotary.scale,
            offset=offset,
            freqs=rotary.periods,
        )

    return turn(queries), turn(keys)
