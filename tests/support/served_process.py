"""A real server: the `mtrun` command in its own process on a free port."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import IO, Any

import httpx

BOUND = re.compile(r"mtrun serves \S+ on (http://\S+)")
START_SECONDS = 60.0


@dataclass
class Process:
    """A running server and everything it printed."""

    popen: subprocess.Popen[str]
    url: str = ""
    output: list[str] = field(default_factory=list)  # standard output
    log: list[str] = field(default_factory=list)  # standard error: one line a request
    bound: threading.Event = field(default_factory=threading.Event)  # the port is open, or the process has ended
    pumps: list[threading.Thread] = field(default_factory=list)

    def get(self, path: str) -> dict[str, Any]:
        return httpx.get(self.url + path, timeout=30.0).json()

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=120.0)

    def chat(self, content: str = "hello", **fields: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **fields})

    def stop(self) -> int:
        """Interrupts the server as Ctrl-C does and returns its exit code."""
        self.popen.send_signal(signal.SIGINT)
        code = self.popen.wait(30)
        for pump in self.pumps:
            pump.join(10)
        return code

    def _pump(self, pipe: IO[str], lines: list[str]) -> None:
        with pipe:
            for line in pipe:
                lines.append(line.rstrip("\n"))
                if found := BOUND.search(line):
                    self.url = found.group(1)
                    self.bound.set()
        self.bound.set()


def launch(*overrides: str) -> Process:
    """Starts the command and waits for the line that says the port is open."""
    command = [sys.executable, "-m", "mtrun.runtime.cli.main", *overrides, "server.port=0"]
    popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = Process(popen)
    assert popen.stdout is not None
    assert popen.stderr is not None
    for pipe, lines in ((popen.stdout, process.output), (popen.stderr, process.log)):
        process.pumps.append(threading.Thread(target=process._pump, args=(pipe, lines), daemon=True))
        process.pumps[-1].start()
    if not process.bound.wait(START_SECONDS) or not process.url:
        popen.kill()
        raise AssertionError(f"the server did not open a port (exit code {popen.wait()}): {process.log}")
    return process
