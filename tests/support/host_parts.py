"""A tiny llama that speaks numpy: MLX inside, host arrays at its face, and caches that say that they trim."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from mtrun.runtime.packs.contract import Caches, TrunkOut
from mtrun.runtime.parts import Parts, stock_parts


class HostCache:
    """An append-only cache of another maker: `offset`, `trim`, and its word that trimming is exact."""

    trims_exactly = True

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def offset(self) -> int:
        return self.inner.offset

    def trim(self, count: int) -> int:
        return self.inner.trim(count)


def wrapped(caches: Caches) -> Caches:
    return [HostCache(cache) for cache in caches]


def unwrapped(caches: Caches) -> Caches:
    return [cache.inner for cache in caches]


class HostTrunk:
    """`contract.Trunk` of numpy arrays around one of MLX arrays."""

    xp = np

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.hidden_size, self.vocab_size = inner.hidden_size, inner.vocab_size
        self.context_limit = inner.context_limit

    def new_caches(self) -> Caches:
        return wrapped(self.inner.new_caches())

    def embed(self, ids: np.ndarray) -> np.ndarray:
        return np.array(self.inner.embed(device(ids)))

    def forward(self, ids: np.ndarray, caches: Caches, logits: Any) -> TrunkOut:
        out = self.inner.forward(device(ids), unwrapped(caches), logits)
        return TrunkOut(np.array(out.hidden), None if out.logits is None else np.array(out.logits))

    def project(self, hidden: np.ndarray) -> np.ndarray:
        return np.array(self.inner.project(device(hidden)))

    def projection_rows(self, ids: np.ndarray) -> np.ndarray:
        return np.array(self.inner.projection_rows(device(ids)))


class HostHead:
    """`contract.Head` of numpy arrays around one of MLX arrays."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.max_depth = inner, inner.max_depth

    def new_caches(self) -> Caches:
        return wrapped(self.inner.new_caches())

    def forward(self, hidden: np.ndarray, embedded: np.ndarray, caches: Caches, depth: int) -> np.ndarray:
        return np.array(self.inner.forward(device(hidden), device(embedded), unwrapped(caches), depth))


def device(values: np.ndarray) -> mx.array:
    """The loop must hand over host arrays, and nothing else."""
    assert isinstance(values, np.ndarray), f"{type(values)} came from the loop"
    return mx.array(values)


def host_parts(parts: Parts) -> Parts:
    """The same model as stock parts that speak numpy."""
    return stock_parts(HostTrunk(parts.trunk), HostHead(parts.head), parts.draft_ids, parts.law)
