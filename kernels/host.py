"""To the host: typed views of small MLX or numpy arrays. Each call waits for an MLX array not evaluated yet."""

from __future__ import annotations

from typing import Any, cast

from mtrun.kernels.arrays import Array


def integer(value: Array) -> int:
    """The one number of a [] or [1] integer array."""
    return int(cast(Any, value.item()))


def integers(values: Array) -> list[int]:
    """[N] integers."""
    return cast(list[int], values.tolist())


def floats(values: Array) -> list[float]:
    """[N] numbers."""
    return cast(list[float], values.tolist())


def flags(values: Array) -> list[bool]:
    """[N] truth values."""
    return cast(list[bool], values.tolist())
