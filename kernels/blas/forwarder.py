"""Binds MLX's BLAS calls on Linux to an optimized library, through the small compiled forwarder of `forward.c`.

The Linux wheel of MLX takes its matrix products from a reference BLAS. The dynamic linker resolves those names when
libmlx is loaded and never again, so the forwarder has to be in the global scope before `mlx.core` is imported; later
it changes nothing and says nothing. The effect is process-wide and cannot be taken back: any library loaded afterwards
that imports plain `cblas_*gemm` names is forwarded as well.

Nothing is remembered in this module: whether the process is bound is asked of the dynamic linker each time.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path

from mtrun.kernels.built import built_file

LIBRARY = "libblas_forward.so"
TARGET = "libscipy_openblas.so"
TARGET_PREFIX = "scipy_"  # scipy-openblas32 prefixes every symbol, so that it never meets another OpenBLAS

_BIND_FAILURES = {
    1: "the BLAS library {target} cannot be opened",
    2: "the BLAS library {target} lacks a function that MLX calls",
}


class BindError(OSError):
    """The forwarder cannot be bound; the message says why."""


@dataclass(frozen=True)
class Forwarder:
    """A bound forwarder. `threads` is the size of the target's own thread pool."""

    path: str
    target: str
    threads: int

    def calls(self) -> int:
        """Matrix products forwarded since the process started, whoever asked for them."""
        return calls()


def library_path() -> str | None:
    """The built forwarder, None where the install had no C compiler."""
    import mtrun.kernels.blas as package

    return built_file(package.__path__, (LIBRARY,))


def target_path() -> str | None:
    """The OpenBLAS of the scipy-openblas32 wheel, None where it is not installed."""
    try:
        import scipy_openblas32  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    path = Path(scipy_openblas32.get_lib_dir()) / TARGET
    return str(path) if path.is_file() else None


def calls() -> int:
    """Matrix products forwarded in this process; 0 where the forwarder is not in the global scope."""
    process = _global_scope()
    if process is None:
        return 0
    process.mtrun_blas_calls.restype = ctypes.c_ulong
    process.mtrun_blas_calls.argtypes = []
    return int(process.mtrun_blas_calls())


def set_threads(count: int) -> None:
    """Resize the target's thread pool, for every caller in the process. Does nothing where nothing is bound."""
    process = _global_scope()
    if process is not None:
        process.mtrun_blas_set_threads.restype = None
        process.mtrun_blas_set_threads.argtypes = [ctypes.c_int]
        process.mtrun_blas_set_threads(count)


def bound_before_mlx() -> bool:
    """Whether MLX's products in this process go, or will go, through the forwarder.

    With `mlx.core` loaded the only honest evidence is a product that moves the counter, so one is run.
    """
    if _global_scope() is None:
        return False
    return "mlx.core" not in sys.modules or _product_is_forwarded()


def bind(threads: int) -> Forwarder:
    """Put the forwarder in front of the BLAS that MLX will bind to. A second call only sets the thread count.

    Raises BindError: nothing built, no target, `mlx.core` already imported, or the target lacks a function.
    """
    if threads < 1:
        raise BindError(f"a BLAS needs at least one thread, not {threads}")
    path, target = library_path(), target_path()
    if path is None:
        raise BindError(f"{LIBRARY} was not built with this install")
    if target is None:
        raise BindError(f"{TARGET} is absent: pip install scipy-openblas32")
    if "mlx.core" in sys.modules and not bound_before_mlx():
        raise BindError("mlx.core was imported first, and a BLAS can only be bound before it")
    _open(path, target, threads)
    return Forwarder(path, target, threads)


def _open(path: str, target: str, threads: int) -> None:
    # Local first: names enter the global scope only when there is a target behind them.
    library = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
    library.mtrun_blas_bind.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    library.mtrun_blas_bind.restype = ctypes.c_int
    library.mtrun_blas_set_threads.argtypes = [ctypes.c_int]
    library.mtrun_blas_set_threads.restype = None
    status = library.mtrun_blas_bind(target.encode(), TARGET_PREFIX.encode())
    if status != 0:
        raise BindError(_BIND_FAILURES[status].format(target=target))
    library.mtrun_blas_set_threads(threads)
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def _global_scope() -> ctypes.CDLL | None:
    """The process's global scope when the forwarder is in it."""
    process = ctypes.CDLL(None)
    return process if hasattr(process, "mtrun_blas_calls") else None


def _product_is_forwarded() -> bool:
    import mlx.core as mx

    before = calls()
    square = mx.ones((8, 8), dtype=mx.float32)  # [8, 8]
    mx.eval(mx.matmul(square, square, stream=mx.cpu))
    return calls() > before
