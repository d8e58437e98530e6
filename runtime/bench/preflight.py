"""What the machine does before a run starts: a busy one is refused, everything else is recorded and told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import MtrunError
from mtrun.runtime.measure import machine

BUSY = 0.5  # load a core over one minute above which the machine is busy
THROTTLE = Path("/sys/devices/system/cpu")


class BusyError(MtrunError):
    """Something else uses the machine, so speeds would be too low."""


def look() -> dict[str, Any]:
    """load (1, 5, 15 minutes), cores, free_bytes, on_battery, throttled (times since boot), temperature, cpu_mhz.

    None wherever the system does not say.
    """
    import psutil

    return {
        "load": machine.load(),
        "cores": os.cpu_count() or 1,
        "free_bytes": psutil.virtual_memory().available,
        "on_battery": _on_battery(),
        "throttled": _throttled(THROTTLE),
        "temperature": machine.temperature(),
        "cpu_mhz": machine.frequency(),
    }


def check(found: Mapping[str, Any], busy_ok: bool) -> list[str]:
    """Sentences worth telling. Raises BusyError on a busy machine unless `busy_ok`."""
    told = []
    if found["load"] is not None and found["load"][0] > BUSY * found["cores"]:
        limit = BUSY * found["cores"]
        state = f"the machine is busy (load {found['load'][0]:.1f} on {found['cores']} cores)"
        if not busy_ok:
            raise BusyError(f"{state}: wait until the load is below {limit:.1f}, or add --busy-ok")
        told.append(f"{state}: speeds will be too low")
    if found["on_battery"]:
        told.append("the machine runs on its battery: it may clock lower than on mains")
    if found["throttled"]:
        told.append(f"the processor was throttled {found['throttled']} times since it was started")
    return told


def _on_battery() -> bool | None:
    import psutil

    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return None if battery is None or battery.power_plugged is None else not battery.power_plugged


def _throttled(folder: Path) -> int | None:
    """The largest count of one core, where Linux keeps one."""
    counts = []
    for path in folder.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        try:
            counts.append(int(path.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return max(counts, default=None)
