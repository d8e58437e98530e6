"""The compiled extension: where it is, and whether this process can use it.

MLX promises no C++ ABI, and nanobind passes an array across only when both sides share one table of types. A mismatch
of either shows as a crash or as an odd TypeError in the middle of a forward: both are compared before the first call.
"""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

from mtrun.kernels.built import built_file
from mtrun.kernels.native.library import VERSION, NativeError

NAME = "_primitive"


def extension_path() -> str | None:
    """The built extension of this Python, None where the install had no nanobind, no MLX headers or no compiler.

    Imports neither the extension nor mlx.
    """
    import mtrun.kernels.native.mlx_primitive as package

    return built_file(package.__path__, (NAME + suffix for suffix in EXTENSION_SUFFIXES))


def load() -> Any:
    """The extension, checked. Raises NativeError: it is absent, does not load, or does not fit this process's mlx."""
    import mlx.core as mx  # first: the extension finds libmlx and its type table already loaded

    if extension_path() is None:
        raise NativeError(
            "the MLX primitive was not built with this install: reinstall where a C++ compiler is present"
        )
    try:
        module = import_module(f"mtrun.kernels.native.mlx_primitive.{NAME}")
    except ImportError as error:
        raise NativeError(f"the MLX primitive cannot be loaded ({error}): install mtrun again") from error
    reason = misfit(module, mx)
    if reason is not None:
        raise NativeError(f"{reason}: install mtrun again")
    return module


def misfit(module: Any, mx: Any) -> str | None:
    """Why the extension `module` must not be called beside `mx` (mlx.core), None when it may."""
    built = module.built_against()
    if built != mx.__version__:
        return f"the MLX primitive was built for mlx {built}, and mlx {mx.__version__} runs"
    if module.array_type() is not mx.array:
        return "the MLX primitive and mlx.core were built with different versions of nanobind and share no arrays"
    if module.INTERFACE != VERSION:
        return f"the MLX primitive calls interface {module.INTERFACE} of the native library, which is {VERSION}"
    return None
