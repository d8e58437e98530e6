"""One judgement of drafted positions in one launch, for every law that decides position by position.

The references are the laws of `runtime/acceptance` (exact, typical, typical-pi, cascade) on float32 blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import mlx.core as mx

from mtrun.kernels.metal.source import MetalKernel, MetalSource, build, check_rows, check_threads, text

SOURCE = MetalSource(
    name="judge",
    inputs=("p", "q", "drafted", "coins", "strength", "cap"),
    outputs=("keep", "deferred", "replacement", "divergence", "target_mass", "draft_mass"),
    body=text("judge"),
    header=text("reduce") + text("judge_header"),
)
LAWS: Mapping[str, int] = MappingProxyType(
    {"exact": 0, "typical": 1, "typical-pi": 2, "opt": 3, "tokenv1": 4, "tokenv2": 5, "tokenv3": 6}
)  # as enum Law in judge_header.metal; the cascade law goes by the name of its rule


@dataclass(frozen=True)
class Verdict:
    """What the law says of D positions on U slots. kept, deferred and replacement are those of a law's `Judgement`."""

    kept: mx.array  # [] int32, leading drafts that stay
    keep: mx.array  # [D] bool, each position for itself
    deferred: mx.array  # [D] bool
    replacement: mx.array  # [D, U] float32, unnormalised
    divergence: mx.array  # [D] float32 total variation distance of p and q
    target_mass: mx.array  # [D] float32 p at the drafted slot
    draft_mass: mx.array  # [D] float32 q at the drafted slot; a value that is not > 0 is a broken contract


def metal_judge(
    p: mx.array,
    q: mx.array,
    drafted: mx.array,
    coins: mx.array,
    *,
    law: str,
    knob: float = 0.0,
    eps: float = 1.0,
    threads: int = 256,
    kernel: MetalKernel | None = None,
) -> Verdict:
    """Judges p, q [D, U] float32 with drafted [D] int32 slots in [0, U) and coins [D] in [0, 1). Lazy.

    law: a name of `LAWS`. knob: alpha of a cascade rule, the threshold of typical and typical-pi, unread by exact;
    eps: typical's cap. Raises ValueError for an unknown law, rows that are not float32 [D, U] of one shape, drafted or
    coins that are not [D]. kernel stands in for `build(SOURCE)`.
    """
    if law not in LAWS:
        raise ValueError(f"judge: law={law!r} is none of {', '.join(LAWS)}.")
    check_block("judge", p, q, drafted, coins)
    check_threads("judge", threads)
    depth = p.shape[0]
    strength = 1 - knob if law == "tokenv3" else knob
    keep, deferred, replacement, divergence, target_mass, draft_mass = (kernel or build(SOURCE))(
        inputs=[p, q, drafted.astype(mx.int32), coins.astype(mx.float32), float(strength), float(eps)],
        template=[("LAW", LAWS[law])],
        grid=(threads * depth, 1, 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[(depth,), (depth,), p.shape, (depth,), (depth,), (depth,)],
        output_dtypes=[mx.bool_, mx.bool_, mx.float32, mx.float32, mx.float32, mx.float32],
    )
    kept = mx.sum(mx.cumprod(keep.astype(mx.int32), axis=0)).astype(mx.int32)
    return Verdict(kept, keep, deferred, replacement, divergence, target_mass, draft_mass)


def check_block(kernel: str, p: mx.array, q: mx.array, drafted: mx.array, coins: mx.array) -> None:
    """Raises ValueError unless p and q are float32 [D, U] of one shape and drafted and coins are [D]."""
    depth, _ = check_rows(kernel, "p", p)
    check_rows(kernel, "q", q)
    if q.shape != p.shape:
        raise ValueError(f"{kernel}: p {list(p.shape)} and q {list(q.shape)} must share their slots.")
    for name, values in (("drafted", drafted), ("coins", coins)):
        if values.shape != (depth,):
            raise ValueError(f"{kernel}: {name} must be [{depth}], not {list(values.shape)}.")
