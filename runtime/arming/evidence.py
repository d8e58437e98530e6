"""Evidence: what the machine, the configuration and the pack's files say. All that a lane may base its answer on."""

from __future__ import annotations

import platform
import sys

from mtrun.kernels.blas import forwarder
from mtrun.kernels.native.library import library_path, native_isa
from mtrun.kernels.native.mlx_primitive.extension import extension_path
from mtrun.lanes.contract import Evidence, PackEvidence


def gather(*, threads: int, law: str, depth: int, pack: PackEvidence) -> Evidence:
    """Look once, before anything is stamped. Never imports mlx: lanes of the process stage come before it.

    `threads` is engine.threads resolved to a number, `law` the configured acceptance law, `depth` draft.depth.
    """
    system, machine = platform.system(), platform.machine()
    linux = system == "Linux"
    return Evidence(
        system=system,
        machine=machine,
        device=_device(system, machine),
        mlx_loaded="mlx.core" in sys.modules,
        blas_forwarder=forwarder.library_path() if linux else None,
        blas_forwarder_bound=linux and forwarder.bound_before_mlx(),
        blas_target=forwarder.target_path() if linux else None,
        threads=threads,
        law=law,
        depth=depth,
        pack=pack,
        native_library=library_path(),
        native_isa=native_isa(),
        mlx_primitive=extension_path(),
    )


def _device(system: str, machine: str) -> str:
    """MLX computes on Metal on every Mac with Apple silicon, and asking MLX itself would import it."""
    return "metal" if (system, machine) == ("Darwin", "arm64") else "cpu"
