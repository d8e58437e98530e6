"""A reply on a terminal while it is made: text above, one status line with speed and law below."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

REFRESH = 8  # redraws a second


class LiveReply:
    """Finished lines are printed for good and scroll away; only the open line and the status are redrawn."""

    def __init__(self, badge: str, console: Console | None = None) -> None:
        self.badge = badge
        self.console = console or Console()
        self._open = ""  # the line that still grows
        self._tokens = 0
        self._started: float | None = None
        self._live = Live(console=self.console, refresh_per_second=REFRESH, get_renderable=self._view, transient=True)

    def __enter__(self) -> LiveReply:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if self._open:
            self._print(self._open)

    def push(self, text: str, tokens: int) -> None:
        """Takes what one cycle released."""
        self._started = self._started or time.monotonic()
        self._tokens += tokens
        *finished, self._open = (self._open + text).split("\n")
        for line in finished:
            self._print(line)
        width = max(self.console.width, 1)
        while len(self._open) > width:  # a long paragraph: break at the last space that fits, as the terminal would
            cut = self._open.rfind(" ", 1, width) + 1 or width
            self._print(self._open[:cut].rstrip())
            self._open = self._open[cut:]

    def _print(self, line: str) -> None:
        self.console.print(Text(line), soft_wrap=True)

    def _view(self) -> Group:
        return Group(Text(self._open), Text(self.status(), style="dim", no_wrap=True, overflow="ellipsis"))

    def status(self) -> str:
        """The status line: tokens, tok/s since the first of them, law."""
        seconds = time.monotonic() - self._started if self._started is not None else 0.0
        speed = (
            f"{(self._tokens - 1) / seconds:.1f} tok/s" if seconds > 0 and self._tokens > 1 else "reading the prompt"
        )
        return f"{self._tokens} tokens | {speed} | {self.badge}"
