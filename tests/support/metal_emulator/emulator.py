"""Runs a Metal kernel body on the CPU: compiled as C++, called like the object that `mx.fast.metal_kernel` returns."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from mtrun.kernels.metal.source import MetalSource
from support.metal_emulator.translate import translate

HERE = Path(__file__).parent
FLAGS = ("-std=c++20", "-O1", "-ffp-contract=off", "-w", "-fPIC", f"-I{HERE}")
ORDERS = ("forwards", "backwards", "shuffled")  # in which the threads of a group, and the groups, take turns
SMALL = 8  # MLX puts an input of fewer elements into the constant address space
TYPES = {
    mx.float32: "float",
    mx.float16: "half",
    mx.bfloat16: "bfloat16_t",
    mx.int32: "int",
    mx.uint32: "uint",
    mx.bool_: "bool",
}
PLACE = (
    ("uint3", "thread_position_in_grid"),
    ("uint3", "thread_position_in_threadgroup"),
    ("uint3", "threadgroup_position_in_grid"),
    ("uint3", "threads_per_threadgroup"),
    ("uint3", "threadgroups_per_grid"),
    ("uint", "thread_index_in_threadgroup"),
    ("uint", "thread_index_in_simdgroup"),
    ("uint", "simdgroup_index_in_threadgroup"),
)


class EmulationError(RuntimeError):
    """The body does not compile, or broke a rule while it ran: the message says which."""


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("start", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("element", ctypes.c_uint32),
        ("output", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int32)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    )


@dataclass(frozen=True)
class _Argument:
    """One buffer of a call: its parameter in Metal, and its memory."""

    name: str
    dtype: mx.Dtype
    memory: np.ndarray  # strided as the kernel sees it; bfloat16 as its bits
    output: bool = False

    @property
    def scalar(self) -> bool:
        return self.memory.ndim == 0

    @property
    def space(self) -> str:
        return "constant" if not self.output and self.memory.size < SMALL else "device"

    @property
    def signature(self) -> str:
        """The parameter as MLX writes it, without its buffer index."""
        kind = {"half": "float16_t", "int": "int32_t", "uint": "uint32_t"}.get(TYPES[self.dtype], TYPES[self.dtype])
        return f"{'' if self.output else 'const '}{self.space} {kind}{'&' if self.scalar else '*'} {self.name}"

    def declared(self, index: int) -> str:
        """C++ that binds the name inside the body."""
        kind = TYPES[self.dtype]
        if self.scalar:
            return f"const {kind} {self.name} = *(const {kind}*)buffers[{index}]->start;"
        kind = kind if self.output else f"const {kind}"
        pointer = f"emu::Pointer<{kind}, emu::{self.space.capitalize()}>"
        return f"const {pointer} {self.name}{{({kind}*)buffers[{index}]->start, buffers[{index}]}};"

    def buffer(self) -> _Buffer:
        extent = 1 + sum((n - 1) * step for n, step in zip(self.memory.shape, self.steps, strict=True))
        size = self.memory.itemsize
        shape = (ctypes.c_int32 * self.memory.ndim)(*self.memory.shape)
        strides = (ctypes.c_int64 * self.memory.ndim)(*self.steps)
        return _Buffer(self.memory.ctypes.data, extent * size, size, self.output, self.name.encode(), shape, strides)

    @property
    def steps(self) -> list[int]:
        return [step // self.memory.itemsize for step in self.memory.strides]


@dataclass(frozen=True)
class Emulator:
    """Compiles with g++ into the folder `cache`, under the hash of what is compiled."""

    cache: Path
    order: str = "forwards"

    @staticmethod
    def missing() -> str | None:
        """Why nothing can be emulated here, or None."""
        able = sys.platform == "linux" and shutil.which("g++")
        return None if able else "the Metal emulator needs Linux and g++"

    def kernel(self, source: MetalSource) -> EmulatedKernel:
        return EmulatedKernel(source, self)

    def turned(self, order: str) -> Emulator:
        """The same emulator with another order of threads, one of `ORDERS`."""
        return replace(self, order=order)

    def library(self, text: str) -> Path:
        """The shared library of a kernel in C++. Raises EmulationError with the compiler's words."""
        scheduler = self._built("scheduler", (HERE / "scheduler.cpp").read_text(), ".o", ("-c", "-O2"))
        return self._built("kernel", text, ".so", ("-shared", str(scheduler)))

    def _built(self, name: str, text: str, suffix: str, flags: tuple[str, ...]) -> Path:
        seen = "\0".join((text, (HERE / "metal_stdlib").read_text(), *FLAGS, *flags))
        target = self.cache / f"{name}_{hashlib.sha256(seen.encode()).hexdigest()[:20]}{suffix}"
        if not target.exists():
            made = target.with_suffix(f".{os.getpid()}{suffix}")
            # The object comes after the source that calls it, and `-x none` ends the language that stdin needs.
            command = ["g++", *FLAGS, "-x", "c++", "-", "-x", "none", *flags, "-o", str(made)]
            done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
            if done.returncode:
                raise EmulationError(done.stderr[:4000])
            made.replace(target)
        return target


@dataclass(frozen=True)
class EmulatedKernel:
    """Stands in for the object that `mx.fast.metal_kernel` returns; runs at once instead of lazily."""

    source: MetalSource
    emulator: Emulator
    signatures: list[list[str]] = field(default_factory=list, compare=False)  # parameters of every call so far

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array | float | int],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[mx.Dtype],
        template: Sequence[tuple[str, mx.Dtype | int | bool]] = (),
    ) -> list[mx.array]:
        given = zip(self.source.inputs, inputs, strict=True)
        made = zip(self.source.outputs, output_shapes, output_dtypes, strict=True)
        arguments = [self._input(name, value) for name, value in given]
        arguments += [_output(name, shape, dtype) for name, shape, dtype in made]
        self.signatures.append([argument.signature for argument in arguments])
        _run(self.emulator.library(self._text(arguments, template)), arguments, grid, threadgroup, self.emulator.order)
        return [_array(argument) for argument in arguments if argument.output]

    def _input(self, name: str, value: mx.array | float | int) -> _Argument:
        if not isinstance(value, mx.array):
            value = mx.array(value, dtype=mx.float32 if isinstance(value, float) else mx.int32)
        memory = np.asarray(value.view(mx.uint16) if value.dtype == mx.bfloat16 else value)
        if self.source.row_contiguous and value.ndim:
            memory = np.ascontiguousarray(memory)
        return _Argument(name, value.dtype, memory)

    def _text(self, arguments: list[_Argument], template: Sequence[tuple[str, mx.Dtype | int | bool]]) -> str:
        lines = ['#include "metal_stdlib"', '#line 1 "header"', translate(self.source.header)]
        lines += ["void kernel_body(const emu::Region* const* buffers) {", "const emu::Place place = emu::place();"]
        lines += [f"const {kind} {name} = place.{name};" for kind, name in PLACE if name in self.source.body]
        lines += [_constant(name, value) for name, value in template]
        for index, argument in enumerate(arguments):
            lines.append(argument.declared(index))
            if not argument.output and not argument.scalar:
                lines.append(f"const int* {argument.name}_shape = buffers[{index}]->shape;")
                lines.append(f"const int64_t* {argument.name}_strides = buffers[{index}]->strides;")
        return "\n".join([*lines, '#line 1 "body"', translate(self.source.body), "}", ""])


def _constant(name: str, value: mx.Dtype | int | bool) -> str:
    if isinstance(value, mx.Dtype):
        return f"using {name} = {TYPES[value]};"
    return f"constexpr {'bool' if isinstance(value, bool) else 'int'} {name} = {int(value)};"


def _output(name: str, shape: tuple[int, ...], dtype: mx.Dtype) -> _Argument:
    kind = np.dtype(np.uint16) if dtype == mx.bfloat16 else np.asarray(mx.zeros(1, dtype=dtype)).dtype
    memory = np.empty(shape, dtype=kind)
    if kind.kind == "f":
        memory.fill(np.nan)
    else:
        memory.view(np.uint8).fill(0xFF if dtype == mx.bfloat16 else 0xCD)
    return _Argument(name, dtype, memory, output=True)


def _array(argument: _Argument) -> mx.array:
    made = mx.array(argument.memory)
    return made.view(mx.bfloat16) if argument.dtype == mx.bfloat16 else made


def _run(
    library: Path,
    arguments: list[_Argument],
    grid: tuple[int, int, int],
    threadgroup: tuple[int, int, int],
    order: str,
) -> None:
    buffers = (_Buffer * len(arguments))(*[argument.buffer() for argument in arguments])
    launch = (ctypes.c_uint32 * 7)(*grid, *threadgroup, ORDERS.index(order))
    error = ctypes.create_string_buffer(400)
    call = ctypes.CDLL(str(library)).emulate
    if call(buffers, len(arguments), launch, error, ctypes.c_size_t(len(error))):
        raise EmulationError(error.value.decode())
