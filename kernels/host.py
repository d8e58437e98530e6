"""From device to host: typed views of small arrays. Each call waits for the array if it is not evaluated yet."""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx


def integer(value: mx.array) -> int:
    """The one number of a [] or [1] integer array."""
    return int(cast(Any, value.item()))


def integers(values: mx.array) -> list[int]:
    """[N] integers."""
    return cast(list[int], values.tolist())


def floats(values: mx.array) -> list[float]:
    """[N] numbers."""
    return cast(list[float], values.tolist())


def flags(values: mx.array) -> list[bool]:
    """[N] truth values."""
    return cast(list[bool], values.tolist())
