"""What is read off a window's receipt: speed, tokens and time of a cycle, and whether something else had the core.

Only what was counted and timed is read, never a figure that was formed from it, so that all who read a window agree.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mtrun.runtime.measure.stats import Values

CONTENTION = 1.1  # wall / CPU seconds of the decode phase above which something else had the core

Window = Mapping[str, Any]  # of schema mtrun.window/1
Read = Callable[[Window], float | None]  # one figure of a window, None where it has none

_SHORTEST = 1e-9  # seconds, in the place of a duration of none


def decode_speed(window: Window) -> float:
    """Decode tok/s: the first token belongs to prefill."""
    return (len(window["ids"]) - 1) / max(window["decode_seconds"], _SHORTEST)


def tokens_per_cycle(window: Window) -> float | None:
    """Tokens that one forward of the target made, 1 in plain decoding; None where no forward ran."""
    calls = window["counts"]["verify_calls"]
    return 1 + window["counts"]["accepted"] / calls if calls else None


def ms_per_cycle(window: Window) -> float | None:
    """Decode milliseconds of one forward of the target with all that belongs to it; None where no forward ran."""
    calls = window["counts"]["verify_calls"]
    return 1e3 * window["decode_seconds"] / calls if calls else None


def contention(window: Window) -> float:
    """Wall over CPU seconds while decoding; below one where several threads ran."""
    return window["decode_seconds"] / max(window["decode_cpu_seconds"], _SHORTEST)


def contended(windows: Iterable[Window]) -> int:
    """How many of the windows took more than CONTENTION times their CPU time to decode."""
    return sum(contention(window) > CONTENTION for window in windows)


def place_means(windows: Iterable[Window], read: Read) -> Values:
    """One figure of each (seed, prompt), the mean over its rounds, where windows have it."""
    found: dict[tuple[int, int], list[float]] = {}
    for window in windows:
        value = read(window)
        if value is not None:
            found.setdefault((window["seed"], window["prompt"]), []).append(value)
    return {key: statistics.fmean(values) for key, values in found.items()}
