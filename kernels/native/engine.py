"""Weights of one model in the native library: matrices in one arena, multiplied by rows."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from mtrun.kernels.native.library import NativeError, Stored, instruction_set, open_library, pointer

TILE = 32  # outputs of a weight tile: results are padded to a multiple of it


class Activation(IntEnum):
    """How activations meet quantised weights (kernels.h)."""

    WIDE = 0  # 14 to 15 bits with a power of two per 32 values: float32-grade
    INT8 = 1  # 8 bits with a scale per 32 values: what llama.cpp does, and its error


@dataclass(frozen=True)
class StoredMatrix:
    """A [outputs, inputs] matrix as MLX stores it, as NumPy arrays.

    Dense (`bits` 0): weight [outputs, inputs] float32, float16, or bfloat16 as uint16 with `bfloat`. Quantised: weight
    [outputs, inputs * bits / 32] uint32, scales and biases [outputs, inputs / group] of those types.
    """

    weight: np.ndarray
    scales: np.ndarray | None = None
    biases: np.ndarray | None = None
    bits: int = 0
    group: int = 0
    bfloat: bool = False

    @property
    def outputs(self) -> int:
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        return self.weight.shape[1] * 32 // self.bits if self.bits else self.weight.shape[1]


@dataclass(frozen=True)
class Entry:
    """A matrix to be put into an engine: all rows or those of `rows` [K] int32, exact or rounded to 4 bits."""

    matrix: StoredMatrix
    rows: np.ndarray | None = None
    four_bits: bool = False


class NativeEngine:
    """Matrices in the order of their use, in one arena. Belongs to one thread at a time."""

    def __init__(self, isa: str, threads: int, activation: Activation, entries: Sequence[Entry]) -> None:
        """Packs `entries`; their indices are their places. Raises NativeError: no such set, no memory, a bad layout."""
        self.library = open_library()
        self.isa, self.threads, self.activation = isa, threads, activation
        self.inputs: list[int] = []  # of each matrix
        kept = [self._checked(entry) for entry in entries]
        pairs = list(zip(kept, entries, strict=True))
        size = sum(self.library.mtrun_native_packed_bytes(each.value, entry.four_bits) for each, entry in pairs)
        handle = self.library.mtrun_engine_new(isa.encode(), threads, size, int(activation))
        if handle is None:
            known = instruction_set(self.library, isa)
            raise NativeError(f"{size} bytes of weights do not fit into memory" if known else f"no {isa} kernels here")
        self.handle: int = handle
        self._free = weakref.finalize(self, self.library.mtrun_engine_free, handle)
        for each, entry in pairs:
            self._put(each, entry)

    def _checked(self, entry: Entry) -> _Kept:
        kept, matrix = _stored(entry), entry.matrix
        reason = self.library.mtrun_native_refuse(ctypes.byref(kept.value), entry.four_bits)
        if reason is not None:
            raise NativeError(f"a matrix of {matrix.outputs} x {matrix.inputs} cannot be packed: {reason.decode()}")
        return kept

    def _put(self, kept: _Kept, entry: Entry) -> int:
        index = self.library.mtrun_engine_add(self.handle, kept.value, entry.four_bits)
        if index < 0:
            raise NativeError("there is no memory for one more matrix")
        self.inputs.append(entry.matrix.inputs)
        return index

    def add(self, entry: Entry) -> int:
        """Packs one more matrix behind the others and returns its index. Raises NativeError as the constructor does."""
        return self._put(self._checked(entry), entry)

    def set_threads(self, threads: int) -> None:
        """For all later calls."""
        self.threads = threads
        self.library.mtrun_engine_set_threads(self.handle, threads)

    def set_activation(self, activation: Activation) -> None:
        """For all later calls; the packed weights serve both."""
        self.activation = activation
        self.library.mtrun_engine_set_activation(self.handle, int(activation))

    def outputs(self, index: int) -> int:
        """Outputs of a matrix, padded to 32. Raises IndexError for one that was not packed."""
        self.known(index)
        return self.library.mtrun_engine_outputs(self.handle, index)

    def known(self, index: int) -> None:
        """Raises IndexError where no matrix has that index."""
        if not 0 <= index < len(self.inputs):
            raise IndexError(f"matrix {index} of {len(self.inputs)} does not exist")

    def multiply(self, index: int, x: np.ndarray) -> np.ndarray:
        """x [R, inputs] float32 times matrix `index` -> [R, padded outputs] float32. ValueError for its width."""
        self.known(index)
        if x.shape[1] != self.inputs[index]:
            raise ValueError(f"matrix {index} takes {self.inputs[index]} inputs, not {x.shape[1]}")
        x = np.ascontiguousarray(x, dtype=np.float32)
        y = np.empty((x.shape[0], self.outputs(index)), dtype=np.float32)
        self.library.mtrun_engine_multiply(self.handle, index, pointer(x), x.shape[0], pointer(y))
        return y

    def row(self, index: int, output: int, inputs: int) -> np.ndarray:
        """Row `output` of matrix `index` as [inputs] float32: what the packed weights stand for."""
        self.known(index)
        out = np.empty(inputs, dtype=np.float32)
        self.library.mtrun_engine_row(self.handle, index, output, pointer(out))
        return out

    def arena(self) -> Arena:
        """Where the weights lie."""
        numbers = [ctypes.c_size_t() for _ in range(3)]
        self.library.mtrun_engine_arena(self.handle, *map(ctypes.byref, numbers))
        return Arena(*(number.value for number in numbers))


@dataclass(frozen=True)
class Arena:
    """The block of memory that holds the weights: its address, its size and the bytes in use."""

    base: int
    mapped: int
    used: int

    def huge_bytes(self) -> int | None:
        """Bytes of it that the system put on huge pages (Linux's smaps), None where it does not say."""
        try:
            with open("/proc/self/smaps", encoding="ascii") as smaps:
                return _huge_bytes(smaps, self.base, self.base + self.mapped)
        except OSError:
            return None


def _huge_bytes(smaps: Any, low: int, high: int) -> int:
    """Sums AnonHugePages over the mappings that overlap [low, high)."""
    total, inside = 0, False
    for line in smaps:
        head = line.split(maxsplit=1)[0]
        if "-" in head and not head.endswith(":"):
            start, end = (int(part, 16) for part in head.split("-"))
            inside = start < high and end > low
        elif inside and head == "AnonHugePages:":
            total += int(line.split()[1]) * 1024
    return min(total, high - low)


@dataclass(frozen=True)
class _Kept:
    """A C view of an entry and the arrays that it points into."""

    value: Stored
    arrays: tuple[np.ndarray, ...]


def _stored(entry: Entry) -> _Kept:
    matrix = entry.matrix
    floats = matrix.weight if matrix.scales is None else matrix.scales
    source = 2 if matrix.bfloat else {"float32": 0, "float16": 1}[floats.dtype.name]
    arrays = [None if a is None else np.ascontiguousarray(a) for a in (matrix.weight, matrix.scales, matrix.biases)]
    rows = None if entry.rows is None else np.ascontiguousarray(entry.rows, dtype=np.int32)
    if rows is not None and (rows.size == 0 or rows.min() < 0 or rows.max() >= matrix.outputs):
        raise NativeError(f"rows to take must be some of the {matrix.outputs} that the matrix has")
    places = [0 if a is None else pointer(a) for a in arrays]
    value = Stored(
        matrix.bits, matrix.group, matrix.outputs, matrix.inputs, *places, source,
        0 if rows is None else pointer(rows), 0 if rows is None else rows.size,
    )  # fmt: skip
    return _Kept(value, tuple(a for a in (*arrays, rows) if a is not None))
