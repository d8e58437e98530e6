"""Packed matrices that multiply lazily: one engine of the native library, shared by Python and by pending graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mtrun.kernels.native.engine import Activation, Entry, NativeEngine
from mtrun.kernels.native.mlx_primitive.extension import load


@dataclass(frozen=True)
class PackedMatrix:
    """One matrix [outputs, inputs] of an engine. Called with x it gives x times the matrix's rows, lazily."""

    extension: Any
    engine: Any
    index: int
    inputs: int
    outputs: int
    padded: int  # outputs as the library writes them

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., inputs] float32 -> [..., outputs] float32 on the CPU's default stream of this thread.

        Raises ValueError for another type or width.
        """
        return self.extension.small_matmul(x, self.engine, self.index, self.inputs, self.outputs, self.padded)


class PackedMatrices:
    """Matrices packed in the order of their use. Streams take turns; graphs may outlive this object."""

    def __init__(
        self, isa: str, threads: int, entries: Sequence[Entry], activation: Activation = Activation.WIDE
    ) -> None:
        """Packs `entries`; their indices are their places. Raises NativeError as `load` and `NativeEngine` do."""
        extension = load()
        packed = NativeEngine(isa, threads, activation, entries)
        library = packed.library
        # The extension frees the engine when the last graph is done with it, which may be after this object is gone.
        packed._free.detach()
        self._engine = extension.Engine(
            packed.handle, _address(library.mtrun_engine_multiply), _address(library.mtrun_engine_free)
        )
        self.matrices = tuple(
            PackedMatrix(extension, self._engine, index, entry.matrix.inputs, _outputs(entry), packed.outputs(index))
            for index, entry in enumerate(entries)
        )

    def calls(self) -> int:
        """Products that have run."""
        return self._engine.calls


def _outputs(entry: Entry) -> int:
    return entry.matrix.outputs if entry.rows is None else entry.rows.size


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
