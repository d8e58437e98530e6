"""One code for two kinds of arrays: MLX arrays, lazy on their device, and numpy arrays, computed at once on the host.

Code asks `namespace` for the module of the arrays it was given and calls that; the functions here stand where the two
modules differ. Host arrays cost about a microsecond an operation where MLX nodes on a CPU cost ten times that, so a
trunk that leaves its logits on the host is judged there, with no MLX operation in the cycle.

The two agree in every order and id, since each sort here is stable, and in a probability to the rounding of float32
`exp` (relative 1e-6, somewhat more in a far tail): float32 up to the weights, then the accumulation dtype.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

Array = mx.array | np.ndarray

SEQUENTIAL = 256  # host sums of up to so many positive terms run in slot order, longer ones pairwise


def namespace(like: Any) -> Any:
    """`mlx.core` or `numpy`: the module that the array (or numpy scalar) belongs to."""
    return mx if isinstance(like, mx.array) else np


def accumulator(xp: Any = mx) -> Any:
    """The dtype in which rows are summed and judged: float64 on the host and where the MLX device has it, else float32.

    xp: the module of the arrays, MLX by default.
    """
    if xp is np:
        return np.float64
    return mx.float64 if mx.default_device() == mx.Device(mx.cpu) else mx.float32


def of_module(values: Any, xp: Any) -> Any:
    """The array as one of module `xp`; itself where it is one already. From MLX to numpy this waits for the values."""
    return values if namespace(values) is xp else xp.array(values)


def evaluate(*values: Any) -> None:
    """Waits for the MLX arrays among values (arrays or None); host arrays hold their values already."""
    lazy = [value for value in values if isinstance(value, mx.array)]
    if lazy:
        mx.eval(lazy)


def cast(values: Any, dtype: Any) -> Any:
    """The array in a dtype of its own module, uncopied where it has it."""
    return values.astype(dtype, copy=False) if isinstance(values, np.ndarray) else values.astype(dtype)


def argsort(values: Any) -> Any:
    """[..., K] positions that sort the last axis ascending, equal values in their order."""
    return np.argsort(values, axis=-1, kind="stable") if isinstance(values, np.ndarray) else mx.argsort(values, axis=-1)


def take(values: Any, slots: Any) -> Any:
    """[R, M] entries of rows [R, K] at slots [R, M]."""
    if isinstance(values, np.ndarray):
        return values[np.arange(len(slots))[:, None], slots]
    return mx.take_along_axis(values, slots, axis=-1)


def pick(values: Any, slots: Any) -> Any:
    """[R] the one entry of each row [R, K] at slots [R]."""
    if isinstance(values, np.ndarray):
        return values[np.arange(len(slots)), slots]
    return mx.take_along_axis(values, slots[:, None], axis=-1)[:, 0]


def put(into: Any, slots: Any, values: Any) -> Any:
    """A copy of rows [R, K] with values [R, M] at slots [R, M]."""
    if isinstance(into, np.ndarray):
        out = into.copy()
        out[np.arange(len(slots))[:, None], slots] = values
        return out
    return mx.put_along_axis(into, slots, values, axis=-1)


def pad(rows: Any, before: int, after: int, fill: Any = 0) -> Any:
    """Rows [R, K] widened to [R, before + K + after] with `fill`."""
    if not isinstance(rows, np.ndarray):
        return mx.pad(rows, [(0, 0), (before, after)], constant_values=fill)
    out = np.full((rows.shape[0], before + rows.shape[1] + after), fill, dtype=rows.dtype)
    out[:, before : before + rows.shape[1]] = rows
    return out


def total(weights: Any) -> Any:
    """[..., 1] sum of non-negative weights [..., K]: float64 on the host, of their own dtype in MLX. Entries of 0
    change no bit.

    So compact, trimmed and dense rows of one distribution have one total. MLX: in slot order. Host: the positive
    entries alone, in slot order up to SEQUENTIAL of them, pairwise above (a long running sum is slow on a CPU).
    """
    if not isinstance(weights, np.ndarray):
        return mx.cumsum(weights, axis=-1)[..., -1:]
    if weights.shape[-1] <= SEQUENTIAL:
        return np.cumsum(weights, axis=-1, dtype=np.float64)[..., -1:]
    sums = [_positive_sum(row) for row in weights.reshape(-1, weights.shape[-1])]
    return np.array(sums).reshape(*weights.shape[:-1], 1)


def _positive_sum(row: np.ndarray) -> np.float64:
    if not row.min() > 0:
        row = row[row > 0]
    if row.size <= SEQUENTIAL:
        return np.cumsum(row, dtype=np.float64)[-1] if row.size else np.float64(0)
    return row.astype(np.float64).sum()


def logsumexp(rows: Any) -> Any:
    """[R, 1] log of the sum of exp of rows [R, V], each with a finite entry."""
    if not isinstance(rows, np.ndarray):
        return mx.logsumexp(rows, axis=-1, keepdims=True)
    peak = rows.max(axis=-1, keepdims=True)
    return peak + np.log(np.exp(rows - peak).sum(axis=-1, keepdims=True))
