"""Metal sources: the text that `mx.fast.metal_kernel` compiles, and what every caller of one needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, cast

import mlx.core as mx

SIMD = 32  # lanes of a simdgroup on every Apple GPU
MOST_THREADS = 1024  # in a threadgroup
MOST_VALUES = 2**31  # kernels index with 32 bits
PRELUDE = "#include <metal_stdlib>\nusing namespace metal;\n"  # the header of a kernel without helpers


@dataclass(frozen=True)
class MetalSource:
    """One kernel: the names of its buffers in order, the body of the kernel function, and helpers before it."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: str
    header: str
    row_contiguous: bool = True  # False: the body reads strides, and MLX copies no view


class MetalKernel(Protocol):
    """What `mx.fast.metal_kernel` returns. The grid counts threads, not threadgroups."""

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array | float | int],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[mx.Dtype],
        template: Sequence[tuple[str, mx.Dtype | int | bool]] = (),
    ) -> list[mx.array]: ...


def text(name: str) -> str:
    """The file NAME.metal of this folder."""
    return (Path(__file__).parent / f"{name}.metal").read_text(encoding="utf-8")


@cache
def build(source: MetalSource) -> MetalKernel:
    """The kernel as MLX compiles it at its first call. Building needs no Metal; calling raises RuntimeError without."""
    kernel = mx.fast.metal_kernel(
        name=f"mtrun_{source.name}",
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        source=source.body,
        header=source.header,
        ensure_row_contiguous=source.row_contiguous,
    )
    return cast(MetalKernel, kernel)  # typed as a bare object by MLX


def check_threads(kernel: str, threads: int, most: int = MOST_THREADS) -> None:
    """Raises ValueError unless a group of so many threads is whole simdgroups and not over `most`."""
    if threads % SIMD or not 0 < threads <= most:
        raise ValueError(f"{kernel}: threads={threads} must be a multiple of {SIMD} up to {most}.")


def check_rows(kernel: str, name: str, rows: mx.array) -> tuple[int, int]:
    """(R, N) of rows [R, N] float32. Raises ValueError for another rank or dtype, no rows, or more than 2^31 values."""
    if rows.ndim != 2 or 0 in rows.shape or rows.size >= MOST_VALUES:
        raise ValueError(f"{kernel}: {name} must be [R, N] with under 2^31 values, not {list(rows.shape)}.")
    if rows.dtype != mx.float32:
        raise ValueError(f"{kernel}: {name} must be float32, not {rows.dtype}.")
    return rows.shape[0], rows.shape[1]
