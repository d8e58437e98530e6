"""A model's linear modules, packed: modules that hold the same parameters and multiply in the native library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mtrun.kernels.native.convert import matrix
from mtrun.kernels.native.engine import Entry, StoredMatrix
from mtrun.kernels.native.library import NativeError
from mtrun.kernels.native.mlx_primitive.matrices import PackedMatrices, PackedMatrix

LINEAR = (nn.Linear, nn.QuantizedLinear)
EMBEDDING = (nn.Embedding, nn.QuantizedEmbedding)
GROUPS = (0, 32, 64, 128)  # 0 = dense


@dataclass(frozen=True)
class Slot:
    """A place of a module in a model."""

    name: str  # dotted, as in parameter names
    holder: Any  # the module, dict or list that holds it
    key: Any
    module: nn.Module


class _Packed(nn.Module):
    """Looks like `stock` in every attribute and parameter."""

    def __init__(self, stock: nn.Module, product: PackedMatrix) -> None:
        super().__init__()
        self.__dict__.update(vars(stock))
        for name, value in stock.items():
            self[name] = value
        self._product = product
        self._floats = stock["scales" if "scales" in stock else "weight"].dtype

    def multiply(self, x: mx.array) -> mx.array:
        """x [..., inputs] -> [..., outputs], computed in float32 and given back in the type the stock module gives."""
        return self._product(x.astype(mx.float32)).astype(mx.result_type(x.dtype, self._floats))


class PackedLinear(_Packed):
    """In the place of nn.Linear or nn.QuantizedLinear."""

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., inputs] -> [..., outputs]."""
        y = self.multiply(x)
        return y + self["bias"] if "bias" in self else y


class PackedEmbedding(_Packed):
    """In the place of a tied nn.Embedding or nn.QuantizedEmbedding: looks up as it did, multiplies packed."""

    def __init__(self, stock: nn.Module, product: PackedMatrix) -> None:
        super().__init__(stock, product)
        self._look_up = cast(Callable[[mx.array], mx.array], stock.__call__)

    def __call__(self, ids: mx.array) -> mx.array:
        """ids [...] -> [..., inputs]."""
        return self._look_up(ids)

    def as_linear(self, x: mx.array) -> mx.array:
        """x [..., inputs] -> [..., outputs]."""
        return self.multiply(x)


def slots(model: nn.Module, *, tied: bool) -> list[Slot]:
    """The linear modules of a model in its own order; with `tied` its embeddings behind them, which are the lm_head."""
    return [*_slots(model, "", LINEAR), *(_slots(model, "", EMBEDDING) if tied else ())]


def _slots(node: Any, path: str, kinds: tuple[type, ...]) -> Iterator[Slot]:
    for key, child in node.items() if isinstance(node, dict) else enumerate(node):
        name = f"{path}.{key}" if path else str(key)
        if type(child) in kinds:  # a subclass may compute something else
            yield Slot(name, node, key, child)
        elif isinstance(child, (dict, list)):
            yield from _slots(child, name, kinds)


def parameters(model: nn.Module) -> dict[str, mx.array]:
    """The model's parameters by dotted name."""
    return dict(cast(list[tuple[str, mx.array]], tree_flatten(model.parameters())))


def stored_matrix(slot: Slot, arrays: Mapping[str, mx.array]) -> StoredMatrix:
    """A slot's weights among `arrays`. Raises NativeError for a layout that cannot be packed."""
    module: Any = slot.module
    if getattr(module, "mode", "affine") != "affine":
        raise NativeError(f"{slot.name} is quantised as {module.mode}; affine weights are served")
    columns = module.weight.shape[1]
    found = matrix(arrays, slot.name, columns * 32 // module.bits if "scales" in module else columns)
    if found.group not in GROUPS:
        raise NativeError(f"{slot.name} has groups of {found.group}; 32, 64 and 128 are served")
    return found


@dataclass(frozen=True)
class Swap:
    """A slot and the packed module that takes its place."""

    slot: Slot
    packed: nn.Module


@dataclass(frozen=True)
class Swaps:
    """What was packed, the names left as they are with the reason, and the engine behind it."""

    swaps: tuple[Swap, ...]
    left: Mapping[str, str]
    matrices: PackedMatrices

    def put(self) -> None:
        """The packed modules serve."""
        for swap in self.swaps:
            swap.slot.holder[swap.slot.key] = swap.packed

    def back(self) -> None:
        """The very modules that were there before serve."""
        for swap in self.swaps:
            swap.slot.holder[swap.slot.key] = swap.slot.module


def pack(models: list[tuple[list[Slot], Mapping[str, mx.array]]], isa: str, threads: int) -> Swaps:
    """Packs slots, each with the arrays its names are looked up in; changes no model yet.

    Raises NativeError when none can be packed, when the extension is absent, or memory is out.
    """
    taken: list[Slot] = []
    entries: list[Entry] = []
    left: dict[str, str] = {}
    for found, arrays in models:
        for slot in found:
            try:
                entries.append(Entry(stored_matrix(slot, arrays)))
                taken.append(slot)
            except NativeError as error:
                left[slot.name] = str(error)
    if not taken:
        raise NativeError(next(iter(left.values()), "the model has no linear module"))
    matrices = PackedMatrices(isa, threads, entries)
    swaps = tuple(
        Swap(slot, (PackedEmbedding if isinstance(slot.module, EMBEDDING) else PackedLinear)(slot.module, product))
        for slot, product in zip(taken, matrices.matrices, strict=True)
    )
    return Swaps(swaps, left, matrices)
