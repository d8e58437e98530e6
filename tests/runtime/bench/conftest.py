"""The real command on a tiny pack, each time on a thread of its own: closing a generator ends its MLX streams."""

import contextlib
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mtrun.runtime.bench.folder import RunFolder
from mtrun.runtime.bench.summary import summarise
from mtrun.runtime.cli import main as cli
from support.tiny_pack import write_tiny_pack

TOKENS = 8
CELLS = ("--cell", "plain=draft.depth=0", "--cell", "exact=draft.depth=3")


@dataclass(frozen=True)
class Ran:
    """What a command came to."""

    code: int
    out: str  # standard output
    err: str
    path: Path  # of the run

    @property
    def folder(self) -> RunFolder:
        return RunFolder.read(self.path)

    @property
    def windows(self) -> list[dict[str, Any]]:
        return self.folder.windows()

    @property
    def summary(self) -> dict[str, Any]:
        return summarise(self.path)


Bench = Callable[..., Ran]


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_pack(tmp_path_factory.mktemp("bench") / "pack", draft_vocab=64)


@pytest.fixture(scope="session")
def bench(pack: Path) -> Bench:
    """`bench(folder, *words)` runs `mtrun bench` there; a pack and small numbers are given already."""

    def command(folder: Path, words: tuple[str, ...]) -> Ran:
        out, err = io.StringIO(), io.StringIO()
        sizes = [] if "--tokens" in words else ["--tokens", str(TOKENS)]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(["bench", "--busy-ok", "--out", str(folder), *sizes, f"pack={pack}", *words])
        return Ran(code, out.getvalue(), err.getvalue(), folder)

    def run(folder: Path, *words: str) -> Ran:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(command, folder, words).result()

    return run


@pytest.fixture(scope="session")
def sweep(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Two cells, three seeds, two prompts each."""
    return bench(tmp_path_factory.mktemp("runs") / "sweep", *CELLS, "--seeds", "3", "--per-seed", "2")
