"""What runs: configuration, arming, decoding, packs, server and command line.

The Python API is `compose` and `Engine`:

    from mtrun.runtime import Engine, compose
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtrun.runtime.config.compose import compose
    from mtrun.runtime.engine import Engine

__all__ = ["Engine", "compose"]

_HOMES = {"compose": "mtrun.runtime.config.compose", "Engine": "mtrun.runtime.engine"}


def __getattr__(name: str) -> Any:
    """Imports on first use: `mtrun --cfg job` must not pay for the engine, nor import mlx before its lanes."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
