"""The measuring side of a peer's process: starts it, sends commands, reads replies."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]  # of the checkout, where `benchmarks` is found


class PeerError(Exception):
    """A peer refused a command or its process died. The message is the reason."""


class PeerProcess:
    """One running peer. Nothing is measured by two of them at once: every command waits for its reply."""

    def __init__(self, name: str, module: str, python: str) -> None:
        """Raises PeerError where the interpreter cannot be started."""
        self.name = name
        try:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.peers.worker", module],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            raise PeerError(f"the interpreter {python} cannot be started ({error.strerror})") from error

    def ask(self, op: str, **words: Any) -> dict[str, Any]:
        """Raises PeerError: refused, with the reason, or the process is gone."""
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
            raise PeerError(f"the process of {self.name} ended with exit code {code}; its last words are above")
        reply = json.loads(line)
        if "error" in reply:
            raise PeerError(reply["error"])
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
