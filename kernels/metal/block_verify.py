"""Block verification of one drafted path in one launch. The reference is `mtrun.kernels.block_verify.block_verify`."""

from __future__ import annotations

import mlx.core as mx

from mtrun.kernels.metal.judge import check_block
from mtrun.kernels.metal.source import MetalKernel, MetalSource, build, check_threads, text

SOURCE = MetalSource(
    name="block_verify",
    inputs=("p", "q", "drafted", "coins"),
    outputs=("succeeded", "replacement"),
    body=text("block_verify"),
    header=text("reduce"),
)


def metal_block_verify(
    p: mx.array,
    q: mx.array,
    drafted: mx.array,
    coins: mx.array,
    *,
    threads: int = 256,
    kernel: MetalKernel | None = None,
) -> tuple[mx.array, mx.array]:
    """Judges p, q [D, U] float32 with drafted [D] int32 slots in [0, U) and coins [D] in [0, 1). Lazy.

    Returns tau [] int32 and replacement [D, U] float32, as `block_verify` does. Raises ValueError for rows that are not
    float32 [D, U] of one shape, drafted or coins that are not [D]. kernel stands in for `build(SOURCE)`.
    """
    check_block("block_verify", p, q, drafted, coins)
    check_threads("block_verify", threads)
    depth = p.shape[0]
    succeeded, replacement = (kernel or build(SOURCE))(
        inputs=[p, q, drafted.astype(mx.int32), coins.astype(mx.float32)],
        grid=(threads * depth, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[(depth,), p.shape],
        output_dtypes=[mx.bool_, mx.float32],
    )
    tau = mx.max(mx.where(succeeded, mx.arange(1, depth + 1), 0)).astype(mx.int32)
    return tau, replacement
