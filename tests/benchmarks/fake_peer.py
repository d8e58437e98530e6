"""A peer without a runtime: figures are functions of its settings, so that tests know what a table has to say."""

from __future__ import annotations

from benchmarks.peers.base import AbsentError


class Peer:
    """Settings: `speed` in tokens a second; `share` wall / CPU, 1 if absent; `absent` or `fails`, a reason; `talks`."""

    def __init__(self) -> None:
        self.settings: dict = {}

    def open(self, settings):
        self.settings = settings
        if "absent" in settings:
            raise AbsentError(settings["absent"])
        if settings.get("talks"):
            print("a library talks")  # goes to standard error, not between the replies
        return {"what": "nothing", "version": "0", "threads": settings["threads"], "busy_threads": 1}

    def figure(self, tokens):
        seconds = tokens / self.settings["speed"]
        return {"tokens": tokens, "seconds": seconds, "cpu_seconds": seconds / self.settings.get("share", 1.0)}

    def prefill(self, ids):
        return {"figures": {"prefill": self.figure(len(ids))}}

    def decode(self, ids, tokens, seed):
        if "fails" in self.settings and seed:
            raise MemoryError(self.settings["fails"])
        return {"figures": {"decode": self.figure(tokens - 1)}, "ids": [seed] * tokens}

    def rows(self, ids, widths, repeats):
        return {"figures": {f"rows {width}": self.figure(width) for width in widths}}

    def close(self):
        pass
