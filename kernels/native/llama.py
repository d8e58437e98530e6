"""A llama-family trunk and its MTP head as whole-forward native calls, NumPy in and out.

Both have the members of `runtime.packs.contract.Trunk` and `Head`. Source of the head: DeepSeek-V3 (arXiv 2412.19437,
section 2.2).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from mtrun.kernels.native.cache import NativeCache
from mtrun.kernels.native.engine import Activation, Entry, NativeEngine, StoredMatrix
from mtrun.kernels.native.library import Filter, Shape, check, pointer
from mtrun.kernels.native.rows import RowFilters

PROJECTIONS = ("q", "k", "v", "output", "gate", "up", "down")  # a layer's matrices in the order of their use
_WANT = {"none": 0, "last": 1, "all": 2}


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer: norms [H] float32 and the matrices of `PROJECTIONS` by name."""

    attention_norm: np.ndarray
    mlp_norm: np.ndarray
    matrices: dict[str, StoredMatrix]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a llama model."""

    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    rope_traditional: bool


@dataclass(frozen=True)
class Rope:
    """Rotation tables [positions, head_dim / 2] float32, made with the model's own rope so that both rotate alike."""

    cosine: np.ndarray
    sine: np.ndarray


@dataclass(frozen=True)
class TrunkWeights:
    """A trunk. `projection` None = tied: the lm_head is the embedding."""

    embedding: StoredMatrix
    layers: Sequence[LayerWeights]
    norm: np.ndarray
    projection: StoredMatrix | None


@dataclass(frozen=True)
class HeadWeights:
    """An MTP head of one layer, and the ids [K] int32 ascending that it drafts from (None = all)."""

    hidden_norm: np.ndarray
    embed_norm: np.ndarray
    projection: StoredMatrix
    layer: LayerWeights
    norm: np.ndarray
    max_depth: int
    draft_ids: np.ndarray | None


class NativeOut(NamedTuple):
    """The fields of `runtime.packs.contract.TrunkOut`."""

    hidden: np.ndarray  # [1, L, H] float32 after the final norm
    logits: np.ndarray | None  # [L or 1, V] float32


@dataclass(frozen=True)
class Choices:
    """How a model is packed and run."""

    isa: str
    threads: int
    activation: Activation = Activation.WIDE


def _nobody() -> None:
    """Stands where nobody counts."""


class NativeStack:
    """Decoder layers inside the library."""

    def __init__(self, engine: NativeEngine, sizes: Sizes, rope: Rope, layers: Sequence[LayerWeights], first: int):
        """The matrices of `layers` are the engine's from index `first` on."""
        self.engine, library = engine, engine.library
        self._tables = [np.ascontiguousarray(table, dtype=np.float32) for table in (rope.cosine, rope.sine)]
        shape = Shape(
            sizes.hidden, sizes.feed_forward, sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.eps,
            int(sizes.rope_traditional), rope.cosine.shape[0],
        )  # fmt: skip
        self.handle: int = library.mtrun_stack_new(engine.handle, shape, *map(pointer, self._tables))
        self._free = weakref.finalize(self, library.mtrun_stack_free, self.handle)
        for index, layer in enumerate(layers):
            norms = [np.ascontiguousarray(each, dtype=np.float32) for each in (layer.attention_norm, layer.mlp_norm)]
            places = np.arange(7, dtype=np.int32) + first + 7 * index
            library.mtrun_stack_add(self.handle, *map(pointer, norms), pointer(places))

    def new_caches(self) -> list[NativeCache]:
        """One cache for all layers."""
        return [NativeCache(self.engine.library, self, self.handle)]


class NativeTrunk:
    """Implements `runtime.packs.contract.Trunk`."""

    xp: Any = np

    def __init__(self, engine: NativeEngine, sizes: Sizes, rope: Rope, weights: TrunkWeights, places: Places) -> None:
        self.engine, self.sizes, self.places = engine, sizes, places
        self.hidden_size, self.vocab_size, self.context_limit = sizes.hidden, sizes.vocab, rope.cosine.shape[0]
        self.stack = NativeStack(engine, sizes, rope, weights.layers, places.layers)
        norm = np.ascontiguousarray(weights.norm, dtype=np.float32)
        self.handle: int = engine.library.mtrun_trunk_new(
            self.stack.handle, places.embedding, places.projection, sizes.vocab, pointer(norm)
        )
        self._free = weakref.finalize(self, engine.library.mtrun_trunk_free, self.handle)
        self.projection = places.projection  # the matrix in use as lm_head
        self.lm_head = weights.projection or weights.embedding
        self.hit: Callable[[], None] = _nobody  # told of every forward
        self._logits = np.empty((0, 0), dtype=np.float32)

    def new_caches(self) -> list[NativeCache]:
        return self.stack.new_caches()

    def embed(self, ids: np.ndarray) -> np.ndarray:
        """ids [1, L] int32 -> [1, L, H] float32."""
        flat = np.ascontiguousarray(np.reshape(ids, -1), dtype=np.int32)
        out = np.empty((1, flat.size, self.hidden_size), dtype=np.float32)
        check(self.engine.library.mtrun_trunk_embed(self.handle, pointer(flat), flat.size, pointer(out)))
        return out

    def forward(
        self, ids: np.ndarray, caches: Sequence[NativeCache], logits: Literal["all", "last", "none"]
    ) -> NativeOut:
        """See `contract.Trunk`. Logits are valid until the next forward, which writes into the same memory.

        Raises NativeError: memory is out, or a position lies beyond the context limit.
        """
        self.hit()
        flat = np.ascontiguousarray(np.reshape(ids, -1), dtype=np.int32)
        if flat.size == 0:
            raise ValueError("a forward needs at least one token")
        hidden = np.empty((1, flat.size, self.hidden_size), dtype=np.float32)
        rows = {"none": 0, "last": 1, "all": flat.size}[logits]
        out = self._room(rows)
        code = self.engine.library.mtrun_trunk_forward(
            self.handle, caches[0].handle, pointer(flat), flat.size, _WANT[logits], pointer(hidden), pointer(out)
        )
        check(code)
        return NativeOut(hidden, out[:, : self.vocab_size] if rows else None)

    def use_projection(self, index: int) -> None:
        """Makes the engine's matrix `index` [V, H] the lm_head of all later forwards."""
        self.engine.known(index)
        self.projection = index
        self.engine.library.mtrun_trunk_set_projection(self.handle, index)

    def _room(self, rows: int) -> np.ndarray:
        """[rows, padded vocabulary] float32, the same memory while it is large enough: a fresh page costs a fault."""
        width = self.engine.outputs(self.projection)
        if self._logits.shape[0] < rows:
            self._logits = np.empty((rows, width), dtype=np.float32)
        return self._logits[:rows]

    def project(self, hidden: np.ndarray) -> np.ndarray:
        """hidden [..., H] -> logits [..., V] float32."""
        flat = np.reshape(hidden, (-1, self.hidden_size))
        rows = self.engine.multiply(self.projection, flat)[:, : self.vocab_size]
        return np.reshape(rows, (*np.shape(hidden)[:-1], self.vocab_size))

    def projection_rows(self, ids: np.ndarray) -> np.ndarray:
        """The lm_head's rows of ids [K] as [K, H] float32."""
        return np.stack([self.engine.row(self.projection, int(i), self.hidden_size) for i in ids])


class NativeHead:
    """Implements `runtime.packs.contract.Head`, and drafts a whole chain in one call."""

    def __init__(
        self, trunk: NativeTrunk, sizes: Sizes, rope: Rope, weights: HeadWeights, places: Places, rows: RowFilters
    ) -> None:
        engine = trunk.engine
        self.trunk, self.engine, self.rows, self.places = trunk, engine, rows, places
        self.max_depth, self.hidden_size = weights.max_depth, sizes.hidden
        self.scorer = places.scorer  # the matrix whose rows drafts are scored with
        self.draft_ids = None if weights.draft_ids is None else np.ascontiguousarray(weights.draft_ids, dtype=np.int32)
        self.stack = NativeStack(engine, sizes, rope, [weights.layer], places.head_layer)
        norms = [
            np.ascontiguousarray(each, dtype=np.float32)
            for each in (weights.hidden_norm, weights.embed_norm, weights.norm)
        ]
        self.handle: int = engine.library.mtrun_head_new(
            trunk.handle, self.stack.handle, places.fuse, *map(pointer, norms)
        )
        self._free = weakref.finalize(self, engine.library.mtrun_head_free, self.handle)

    def new_caches(self) -> list[NativeCache]:
        return self.stack.new_caches()

    def forward(
        self, hidden: np.ndarray, embedded: np.ndarray, caches: Sequence[NativeCache], depth: int
    ) -> np.ndarray:
        """See `contract.Head`. Raises NativeError as `NativeTrunk.forward` does."""
        hidden = np.ascontiguousarray(hidden, dtype=np.float32)
        embedded = np.ascontiguousarray(embedded, dtype=np.float32)
        if hidden.shape != embedded.shape or hidden.shape[-1] != self.hidden_size:
            raise ValueError(f"pairs of shapes {hidden.shape} and {embedded.shape} are not [1, L, {self.hidden_size}]")
        out = np.empty_like(hidden)
        check(
            self.engine.library.mtrun_head_forward(
                self.handle, caches[0].handle, pointer(hidden), pointer(embedded), hidden.shape[1], pointer(out)
            )
        )
        return out

    def chain(
        self, state: np.ndarray, caches: Sequence[NativeCache], depth: int, how: Any, uniforms: np.ndarray,
        trimmed: bool = True,
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:  # fmt: skip
        """Draws `depth` tokens from the head's `state` [H] under the filter `how` and uniforms [depth] float64.

        -> tokens [depth] int32; ids [depth, K] int32 ascending, None = slot i is token i; probs [depth, K] float64.
        With `trimmed` drafts come from `draft_ids` where the pack ships them, else from the whole vocabulary. The
        chain's own depth - 1 positions stay in the cache. Raises NativeError as `forward` does, and for a row without a
        finite logit.
        """
        vocabulary = self.draft_ids if trimmed else None
        whole = (self.trunk.projection, self.trunk.vocab_size)
        scorer, size = whole if vocabulary is None else (self.scorer, vocabulary.size)
        slots = self.rows.slots(how, size)
        tokens = np.empty(depth, dtype=np.int32)
        ids, probs = np.empty((depth, slots), dtype=np.int32), np.empty((depth, slots), dtype=np.float64)
        state = np.ascontiguousarray(state, dtype=np.float32)
        uniforms = np.ascontiguousarray(uniforms, dtype=np.float64)
        if state.size != self.hidden_size or uniforms.size < depth:
            raise ValueError(f"a chain of {depth} takes a state of {self.hidden_size} and as many uniforms")
        check(
            self.engine.library.mtrun_head_draft(
                self.handle, caches[0].handle, self.rows.handle, pointer(state), scorer,
                0 if vocabulary is None else pointer(vocabulary), size, depth, ctypes.byref(filter_of(how)),
                pointer(uniforms), slots, pointer(tokens), pointer(ids), pointer(probs),
            )
        )  # fmt: skip
        dense = vocabulary is None and slots == size and not how.greedy
        return tokens, None if dense else ids, probs


@dataclass(frozen=True)
class Places:
    """Indices of an engine's matrices."""

    embedding: int
    projection: int
    layers: int  # the first of the trunk's layers
    fuse: int = -1  # the head's own input projection
    head_layer: int = -1
    scorer: int = -1  # the lm_head rows that drafts are scored with


def filter_of(how: Any) -> Filter:
    """A `kernels.rows.RowFilter` as the library takes it."""
    return Filter(how.temperature, how.top_p, how.min_p, how.top_k)


@dataclass(frozen=True)
class NativeModel:
    """A trunk, its head (None where there is none), and the filter of their rows, over one arena."""

    trunk: NativeTrunk
    head: NativeHead | None
    rows: RowFilters


def build(sizes: Sizes, rope: Rope, trunk: TrunkWeights, head: HeadWeights | None, how: Choices) -> NativeModel:
    """Packs a model. Raises NativeError when a layout cannot be served or memory is out."""
    entries, places = _arrange(trunk, head)
    engine = NativeEngine(how.isa, how.threads, how.activation, entries)
    rows = RowFilters(engine.library, how.isa)
    native = NativeTrunk(engine, sizes, rope, trunk, places)
    return NativeModel(native, None if head is None else NativeHead(native, sizes, rope, head, places, rows), rows)


def _arrange(trunk: TrunkWeights, head: HeadWeights | None) -> tuple[list[Entry], Places]:
    """All matrices in the order of a step: layers, lm_head, then the head's; a separate embedding last."""
    entries = [Entry(layer.matrices[name]) for layer in trunk.layers for name in PROJECTIONS]
    lm_head = trunk.projection or trunk.embedding
    projection = len(entries)
    entries.append(Entry(lm_head))
    fuse = head_layer = scorer = -1
    if head is not None:
        fuse = len(entries)
        entries.append(Entry(head.projection))
        head_layer = len(entries)
        entries += [Entry(head.layer.matrices[name]) for name in PROJECTIONS]
        scorer = projection
        if head.draft_ids is not None:
            scorer = len(entries)
            entries.append(Entry(lm_head, head.draft_ids))
    embedding = projection
    if trunk.projection is not None:
        embedding = len(entries)
        entries.append(Entry(trunk.embedding))
    return entries, Places(embedding, projection, 0, fuse, head_layer, scorer)
