"""Seconds from the start of the process to a bound port: what a person waits for after typing `mtrun`.

    python -m benchmarks.startup [--times 5] [profile=turbo pack=smollm2 ...]

The first start is shown and not counted: it may read files that are not in the system's cache yet.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mtrun.runtime.measure.code import code_identity, root
from mtrun.runtime.measure.machine import load, machine, versions

LINE = re.compile(r" serves .* on http://\[?([^\]/]+?)\]?:(\d+)\s*$")


class StartError(Exception):
    """The server ended before it bound a port; its last words are on standard error."""


def start(overrides: Sequence[str]) -> float:
    """Seconds until a client could connect. The server is then stopped. Raises StartError."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "mtrun.runtime.cli.main", "server.port=0", *overrides],
        cwd=root(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := LINE.search(line):
                with socket.create_connection((found[1], int(found[2])), timeout=10):
                    return time.perf_counter() - began
        raise StartError(f"the server ended with exit code {process.wait()} before it bound a port")
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    process.stdout.close()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description="Time the start of the server.")
    parser.add_argument("--times", type=int, default=5, metavar="N", help="counted starts, after one that is not")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="keep the figures there")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for mtrun")
    given = parser.parse_intermixed_args(words)
    if given.times < 1:
        parser.error("--times takes at least 1")
    before = load()
    try:
        first, *seconds = [start(given.overrides) for _ in range(given.times + 1)]
    except StartError as error:
        print(f"benchmarks.startup: {error}", file=sys.stderr)
        return 2
    figures = {"first": first, "seconds": seconds, "median": statistics.median(seconds)}
    print(
        f"start to bound port: median {figures['median']:.2f} s, {min(seconds):.2f}-{max(seconds):.2f} s, "
        f"n={len(seconds)} (the first start took {first:.2f} s)"
    )
    if given.out is not None:
        facts = {"overrides": given.overrides, "code": code_identity(), "machine": machine(), "versions": versions()}
        receipt = {"schema": "mtrun.bench.startup/1", **figures, **facts, "load_before": before, "load_after": load()}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
