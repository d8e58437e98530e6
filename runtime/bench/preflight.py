"""What the machine does before a run starts: a busy one is refused, everything else is recorded and told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import MtrunError
from mtrun.runtime.measure import machine

BUSY = 0.25  # of all cores, in use by others just before the start, above which the machine is busy
WATCHED = 1.0  # seconds over which that is measured
THROTTLE = Path("/sys/devices/system/cpu")


class BusyError(MtrunError):
    """Something else uses the machine, so speeds would be too low."""


def look() -> dict[str, Any]:
    """in_use (cores, over the second that this takes), load (1, 5, 15 minutes), cores, free_bytes, on_battery,
    throttled (times since boot), temperature, cpu_mhz.

    None wherever the system does not say.
    """
    import psutil

    cores = os.cpu_count() or 1
    return {
        "in_use": psutil.cpu_percent(WATCHED) / 100 * cores,
        "load": machine.load(),
        "cores": cores,
        "free_bytes": psutil.virtual_memory().available,
        "on_battery": _on_battery(),
        "throttled": _throttled(THROTTLE),
        "temperature": machine.temperature(),
        "cpu_mhz": machine.frequency(),
    }


def check(found: Mapping[str, Any], busy_ok: bool) -> list[str]:
    """Sentences worth telling. Raises BusyError on a busy machine unless `busy_ok`.

    What counts is what runs now: a load average still tells of what has ended, such as the run before this one.
    """
    told = []
    limit = BUSY * found["cores"]
    if found["in_use"] > limit:
        state = f"the machine is busy ({found['in_use']:.1f} of {found['cores']} cores in use)"
        if not busy_ok:
            raise BusyError(f"{state}: wait until less than {limit:.1f} are, or add --busy-ok")
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
