"""The measuring side of a worker process: starts it, sends commands, reads replies."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from benchmarks.receipt import ROOT


class SideError(Exception):
    """A worker refused a command or died. The message is its reason."""


class SideProcess:
    """One running worker. Nothing is measured by two of them at once: every command waits for its reply."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def ask(self, op: str, **words: Any) -> dict[str, Any]:
        """Raises SideError: refused, with the reason, or the process is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **words}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            raise SideError(f"the process of side {self.name} ended with exit code {code}; its last words are above")
        reply = json.loads(line)
        if "error" in reply:
            raise SideError(reply["error"])
        return reply

    def stop(self) -> None:
        """Ends the process, gently where it still listens. May be called twice."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
