"""Progress with ETA on stderr: a bar on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Advance = Callable[[float, str], None]  # share done in [0, 1], what to show beside it

PLAIN_SECONDS = 30.0  # between two plain lines


@contextmanager
def progress(what: str, stream: TextIO | None = None) -> Iterator[Advance]:
    """A bar called `what`. `stream` None = stderr; lines go through it in either case, never to stdout."""
    from rich.console import Console

    console = Console(file=stream, stderr=stream is None)
    if console.is_terminal:
        with _bar(what, console) as advance:
            yield advance
    else:
        yield _lines(what, console)


@contextmanager
def _bar(what: str, console) -> Iterator[Advance]:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, speed_estimate_period=120) as bar:
        task = bar.add_task(what, total=1.0, note="")
        yield lambda share, note: bar.update(task, completed=share, note=note)


def _lines(what: str, console) -> Advance:
    started = time.monotonic()
    first: list[float] = []  # share at the first call: a resumed run does not start at 0
    shown = [0.0]

    def advance(share: float, note: str) -> None:
        now = time.monotonic()
        first[:] = first or [share]
        if now - shown[0] < PLAIN_SECONDS and share < 1.0:
            return
        shown[0] = now
        done = share - first[0]
        left = f", {clock((now - started) * (1 - share) / done)} left" if done > 0 and share < 1 else ""
        console.print(f"{what}: {share:.0%}{left}  {note}".rstrip(), highlight=False, markup=False, soft_wrap=True)

    return advance


def clock(seconds: float) -> str:
    """h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
