"""The machine, its packages and its load, as JSON types; None wherever the system does not say."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("mtrun", "mlx", "mlx-lm", "numpy", "scipy", "scipy-openblas32", "tokenizers", "hydra-core")


def session() -> dict[str, Any]:
    """When, where and on what one process of measurement started; `ended` and `load_after` are set at its end."""
    return {
        "started": time.time(),
        "machine": machine(),
        "versions": versions(),
        "load_before": load(),
        "ended": None,
        "load_after": None,
    }


def load() -> list[float] | None:
    """Load averages over 1, 5 and 15 minutes, None where the system has none."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def machine() -> dict[str, Any]:
    """System, processor, cores, bytes of memory and the clock now."""
    import psutil

    return {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "cpu_mhz": frequency(),
    }


def frequency() -> int | None:
    """MHz of the processor now."""
    import psutil

    found = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    return None if found is None else round(found.current)


def temperature() -> float | None:
    """The hottest sensor in degrees Celsius."""
    import psutil

    groups = getattr(psutil, "sensors_temperatures", dict)()
    found = [each.current for group in groups.values() for each in group if each.current]
    return max(found) if found else None


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str | None]:
    """Python's version and those of `packages`."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
