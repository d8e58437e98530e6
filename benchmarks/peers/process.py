"""The measuring side of a peer's process."""

from __future__ import annotations

import subprocess

from benchmarks.receipt import ROOT
from benchmarks.sides import SideError, SideProcess


class PeerProcess(SideProcess):
    """One running peer. Nothing is measured by two of them at once: every command waits for its reply."""

    def __init__(self, name: str, module: str, python: str) -> None:
        """Raises SideError where the interpreter cannot be started."""
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
            raise SideError(f"the interpreter {python} cannot be started ({error.strerror})") from error
