"""The verify forward of a llama-family trunk as one compiled graph over key-value buffers of a fixed capacity.

The layers are mlx-lm's own. What changes is what they see of a cache: whole buffers, a position that is an array and
not a number, and a mask over the capacity. A graph is therefore traced once for each (rows, capacity) and used at every
position. The plain reference is mlx-lm's eager forward over `KVCache`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import mlx.core as mx
from mlx_lm.models.cache import KVCache

CAPACITY = 256  # positions of a new buffer; a full one doubles

Graph = Callable[..., tuple[mx.array, mx.array, list[mx.array]]]  # (ids, offset, buffers) -> hidden, logits, buffers


class FixedCache(KVCache):
    """One layer's keys and values in buffers [1, heads, capacity, width] that double when they are full.

    Rows at and after `offset` are stale and hidden by the mask, so trimming is a smaller offset.
    """

    trims_exactly = True  # `runtime.decode.rollback` trims it

    def __init__(self, capacity: int = CAPACITY) -> None:
        super().__init__()
        self.capacity = capacity

    def reserve(self, rows: int) -> None:
        """Make room for `rows` more positions. The cache is not empty."""
        assert self.keys is not None
        while self.capacity < self.offset + rows:
            self.capacity *= 2
        missing = self.capacity - self.keys.shape[2]
        if missing > 0:
            self.keys, self.values = _padded(self.keys, missing), _padded(self.values, missing)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """What mlx-lm's eager layers call: keys and values [1, heads, L, width] in, all valid ones out."""
        if self.keys is None:
            self.keys, self.values = (mx.zeros_like(new[:, :, :0]) for new in (keys, values))
        start, rows = self.offset, keys.shape[2]
        self.reserve(rows)
        self.offset += rows
        self.keys[:, :, start : self.offset] = keys
        self.values[:, :, start : self.offset] = values
        return self.keys[:, :, : self.offset], self.values[:, :, : self.offset]


def _padded(buffer: mx.array, missing: int) -> mx.array:
    batch, heads, _, width = buffer.shape
    return mx.concatenate([buffer, mx.zeros((batch, heads, missing, width), dtype=buffer.dtype)], axis=2)


@dataclass
class Traces:
    """How often the compiled forward was traced, by (rows, capacity). More than once each is a fault."""

    by_shape: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, rows: int, capacity: int) -> None:
        self.by_shape[rows, capacity] = self.by_shape.get((rows, capacity), 0) + 1

    @property
    def total(self) -> int:
        return sum(self.by_shape.values())

    @property
    def repeated(self) -> int:
        """Traces of a shape that had been traced before."""
        return self.total - len(self.by_shape)


@dataclass(frozen=True)
class FixedOut:
    """The fields of `runtime.packs.contract.TrunkOut`: hidden [1, L, H], logits [L, V]."""

    hidden: mx.array
    logits: mx.array


class Slot:
    """A layer's cache inside the graph: the layer's rows go into the buffers at `offset`, [1] int32."""

    def __init__(self, keys: mx.array, values: mx.array, offset: mx.array) -> None:
        self.keys, self.values, self.offset = keys, values, offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Whole buffers out: the mask says which rows count."""
        self.keys = mx.slice_update(self.keys, keys, self.offset, axes=(2,))
        self.values = mx.slice_update(self.values, values, self.offset, axes=(2,))
        return self.keys, self.values


def visible(rows: int, capacity: int, offset: mx.array) -> mx.array:
    """[rows, capacity] bool: row i, at position offset + i, sees the positions up to its own."""
    return mx.arange(capacity)[None] <= (offset + mx.arange(rows))[:, None]


def traced_step(model: Any, project: Callable[[mx.array], mx.array], traces: Traces) -> Graph:
    """The forward to be compiled. `model` is mlx-lm's LlamaModel; buffers are keys and values, layer after layer."""

    def step(ids: mx.array, offset: mx.array, buffers: Sequence[mx.array]) -> tuple[mx.array, mx.array, list[mx.array]]:
        rows, capacity = ids.shape[1], buffers[0].shape[2]
        traces.add(rows, capacity)  # Python runs here when a graph is traced and at no other time
        mask = visible(rows, capacity, offset)
        state, out = model.embed_tokens(ids), []
        for number, layer in enumerate(model.layers):
            slot = Slot(buffers[2 * number], buffers[2 * number + 1], offset)
            state = layer(state, mask, cache=slot)
            out += [slot.keys, slot.values]
        hidden = model.norm(state)
        return hidden, project(hidden[0]), out

    return step


class FixedTrunk:
    """A trunk whose forwards of few rows run compiled; all others, prompts among them, are the stock trunk's.

    Implements `runtime.packs.contract.Trunk`.
    """

    def __init__(self, stock: Any, rows: int, hit: Callable[[], None]) -> None:
        """`rows` is the widest forward to compile; `hit` is called for each that runs. Raises TypeError: no llama."""
        if not all(hasattr(getattr(stock, "model", None), name) for name in ("model", "layers")):
            raise TypeError(f"{type(stock).__name__} is not mlx-lm's llama behind the trunk contract")
        self.stock, self.rows, self.hit = stock, rows, hit
        self.model, self.xp = stock.model, mx
        self.hidden_size, self.vocab_size = stock.hidden_size, stock.vocab_size
        self.context_limit = stock.context_limit
        self.traces = Traces()
        self.graph = cast(Graph, mx.compile(traced_step(stock.model.model, stock.project, self.traces)))

    def new_caches(self) -> list[Any]:
        """The stock trunk's caches, over which it reads eagerly."""
        return self.stock.new_caches()

    def embed(self, ids: mx.array) -> mx.array:
        """See `contract.Trunk`."""
        return self.stock.embed(ids)

    def project(self, hidden: mx.array) -> mx.array:
        """See `contract.Trunk`."""
        return self.stock.project(hidden)

    def projection_rows(self, ids: mx.array) -> mx.array:
        """See `contract.Trunk`."""
        return self.stock.projection_rows(ids)

    def forward(self, ids: mx.array, caches: list[Any], logits: Literal["all", "last", "none"]) -> Any:
        """ids [1, L] int32. Compiled for "all" over at most `rows` rows of fixed caches that hold a prompt."""
        if logits != "all" or ids.shape[1] > self.rows or not all(map(_ready, caches)):
            return self.stock.forward(ids, caches, logits)
        self.hit()
        rows = ids.shape[1]
        buffers: list[mx.array] = []
        for cache in caches:
            cache.reserve(rows)
            buffers += [cache.keys, cache.values]
        hidden, scored, buffers = self.graph(ids, mx.array([caches[0].offset], dtype=mx.int32), buffers)
        # The old buffers have no name any more here, so that evaluation may write into them instead of copying.
        for number, cache in enumerate(caches):
            cache.keys, cache.values = buffers[2 * number], buffers[2 * number + 1]
            cache.offset += rows
        return FixedOut(hidden, scored)


def _ready(cache: Any) -> bool:
    return isinstance(cache, FixedCache) and cache.keys is not None
