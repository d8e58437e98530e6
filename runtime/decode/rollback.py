"""Rejected drafts leave the trunk's caches exactly as if they had never been fed.

Two phases: plan for every layer, check, then mutate. Caches that trim exactly are trimmed; if one layer cannot, the
whole model goes back to the mark and reads the kept rows again. A partial commit is a bug and raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from mtrun.runtime.packs.contract import Caches

TRIMMABLE = (KVCache, QuantizedKVCache)  # append-only buffers: trimming is a smaller offset, later rows overwrite


def trims(cache: Any) -> bool:
    """Whether a cache rolls back exactly by `trim(n) -> rows dropped`, as `offset` then says.

    Known of mlx-lm's by type; any other cache says it of itself with `trims_exactly = True`.
    """
    return type(cache) in TRIMMABLE or getattr(cache, "trims_exactly", False) is True


@dataclass(frozen=True)
class Mark:
    """The caches before a verify forward. `saved[i]` is None where layer i rolls back by trimming."""

    saved: list[tuple[Any, dict[str, Any]] | None]


@dataclass(frozen=True)
class Plan:
    """What to do with fed rows of which only the first stay. `reason` is set when those must be read again."""

    drop: int
    reforward: bool
    reason: str | None


def mark(caches: Caches) -> Mark:
    """Snapshots by slice, not by reference: an MLX array object that is assigned into shows the assignment."""
    return Mark([None if trims(cache) else _save(cache) for cache in caches])


def _save(cache: Any) -> tuple[Any, dict[str, Any]]:
    return type(cache), {name: _copied(value) for name, value in vars(cache).items()}


def _copied(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_copied(each) for each in value)
    if hasattr(value, "update_and_fetch"):
        raise RuntimeError(
            f"a cache that holds caches ({type(value).__name__}) has no snapshot here: give it a rollback"
        )
    if isinstance(value, np.ndarray):
        return value.copy()
    return value[...] if isinstance(value, mx.array) else value


def plan(caches: Caches, before: Mark, rows: int, keep: int) -> Plan:
    """Raises nothing and changes nothing. 1 <= keep <= rows: the first row is the committed primary token."""
    if keep == rows:
        return Plan(0, False, None)
    stuck = [type(cache).__name__ for cache, saved in zip(caches, before.saved, strict=True) if saved is not None]
    if stuck:
        return Plan(rows, True, f"{stuck[0]} does not roll back by trimming")
    return Plan(rows - keep, False, None)


def apply(caches: Caches, before: Mark, step: Plan) -> None:
    """Carries out a plan on every layer. After a `reforward` plan the caller feeds the kept rows again.

    Raises RuntimeError, with every layer as it was, when one cannot drop as many rows as planned.
    """
    if not step.drop:
        return
    layers = list(zip(caches, before.saved, strict=True))
    for cache, saved in layers:
        if saved is None and cache.offset < step.drop:
            raise RuntimeError(
                f"partial commit: {type(cache).__name__} holds {cache.offset} of {step.drop} rows to drop"
            )
    for cache, saved in layers:
        if saved is None:
            if (dropped := cache.trim(step.drop)) != step.drop:
                raise RuntimeError(f"partial commit: {type(cache).__name__} dropped {dropped} of {step.drop} rows")
        else:
            vars(cache).update({name: _copied(value) for name, value in saved[1].items()})
