"""What a runtime under measurement implements, and the clock all of them share. Imports the standard library alone.

A peer lives in a process of its own (`worker.py`), where it is the module-level class `Peer`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Figure = dict[str, float]  # {"tokens", "seconds", "cpu_seconds"}: tokens read or made, wall and process CPU seconds
Reply = dict[str, Any]  # {"figures": {name: Figure}} and what else the peer tells of the window, as JSON types


class AbsentError(Exception):
    """This machine or interpreter cannot have the peer. The message is the reason, in words."""


class Runtime(Protocol):
    """One runtime with one set of weights. It gets token ids, the same as all others, and ignores end-of-sequence."""

    def open(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Loads. Returns {"what": sentence, "version", "threads", "busy_threads", ...}. Raises AbsentError.

        `settings` holds `threads`, `context` (the longest text) and the peer's own. `busy_threads` is how many threads
        run throughout a window: CPU seconds below that many times the wall seconds mean that something else had a core.
        """
        ...

    def prefill(self, ids: Sequence[int]) -> Reply:
        """Reads `ids` from nothing to the first token: the figure `prefill`."""
        ...

    def decode(self, ids: Sequence[int], tokens: int, seed: int) -> Reply:
        """Reads `ids` and makes `tokens` tokens: the figure `decode` without the first, which ends prefill; `ids`."""
        ...

    def rows(self, ids: Sequence[int], widths: Sequence[int], repeats: int) -> Reply:
        """One forward of M rows after `ids`, logits of each, the rows dropped again: a figure `rows M` for each M."""
        ...

    def close(self) -> None:
        """Lets go of the weights."""
        ...


class Stopwatch:
    """Wall and process CPU seconds since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def figure(self, tokens: int) -> Figure:
        """What has passed since the start, for `tokens` tokens."""
        return {
            "tokens": tokens,
            "seconds": time.perf_counter() - self._wall,
            "cpu_seconds": time.process_time() - self._cpu,
        }


def row_figures(
    forward: Callable[[int], None], drop: Callable[[int], None], widths: Sequence[int], repeats: int
) -> dict[str, Figure]:
    """The median of `repeats` forwards of each width, after one that does not count. `drop` is not timed."""
    found: dict[str, Figure] = {}
    for width in widths:
        laps = []
        for _ in range(repeats + 1):
            watch = Stopwatch()
            forward(width)
            laps.append(watch.figure(width))
            drop(width)
        middle = {name: statistics.median(lap[name] for lap in laps[1:]) for name in ("seconds", "cpu_seconds")}
        found[f"rows {width}"] = {"tokens": width, **middle}
    return found
