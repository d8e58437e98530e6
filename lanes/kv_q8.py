"""Lane: the trunk's KV cache is kept in 8 bits. Another distribution, so nobody gets it without asking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage

BITS = 8
GROUPS = (64, 32)  # group sizes that MLX quantizes by, widest first
LIMIT = 0.05  # mean total variation between rows with and without the lane that the proof tolerates


def group_size(head_dim: int | None) -> int | None:
    """The widest group that divides a head, None when there is none."""
    return next((size for size in GROUPS if head_dim and head_dim % size == 0), None)


@dataclass(frozen=True)
class KvQ8:
    """The lane: replaces `parts.cache_factory`."""

    name: str = "kv_q8"
    summary: str = "8-bit KV cache of the trunk: about a quarter of the float32 memory, rows change a little"
    exactness: Exactness = Exactness.LOSSY
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    auto: bool = False

    def supports(self, evidence: Evidence) -> Decision:
        pack = evidence.pack
        if not pack.trimmable_cache:
            return Decision(False, "cache_kind", "A layer's cache is sliding or recurrent and has no 8-bit form.")
        if group_size(pack.head_dim) is None:
            return Decision(False, "head_dim", f"Heads of width {pack.head_dim} do not divide into groups of 32 or 64.")
        size = group_size(pack.head_dim)
        return Decision(True, "supported", f"Heads of width {pack.head_dim} quantize in groups of {size}.")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        from mlx_lm.models.cache import QuantizedKVCache

        assert parts is not None
        stock, latch = parts.cache_factory, Latch()
        size = group_size(evidence.pack.head_dim)
        assert size is not None

        def hot() -> list[Any]:
            latch.hit()
            return [QuantizedKVCache(group_size=size, bits=BITS) for _ in stock()]

        def undo() -> None:
            parts.cache_factory = stock

        parts.cache_factory = hot
        return Installed(undo, latch, hot, before=stock)

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """Every layer's cache is 8-bit, and rows after a random prompt stay near the float cache's."""
        import mlx.core as mx
        import numpy as np

        assert parts is not None
        assert installed.hot is not None
        assert installed.before is not None
        ids = mx.array(np.random.default_rng(0).integers(0, parts.trunk.vocab_size, (1, 32)), dtype=mx.int32)
        caches = [installed.hot(), installed.before()]
        rows = [mx.softmax(parts.trunk.forward(ids, each, "all").logits, axis=-1) for each in caches]
        sizes = [sum(cache.nbytes for cache in each) for each in caches]
        variation = float(mx.mean(mx.sum(mx.maximum(rows[0] - rows[1], 0), axis=-1)))
        figures = {"mean_total_variation": variation, "bytes_ratio": sizes[0] / sizes[1]}
        if {getattr(cache, "bits", None) for cache in caches[0]} != {BITS}:
            return Proof(False, "A layer's cache is not kept in 8 bits.", figures)
        if not variation < LIMIT:
            return Proof(False, f"Rows move by {variation:.3f} in mean total variation, more than {LIMIT}.", figures)
        return Proof(True, f"Rows move by {variation:.1e} in mean total variation.", figures)


LANE = KvQ8()
