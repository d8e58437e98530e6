"""Real servers on a tiny random pack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.served_process import Process, launch
from support.tiny_pack import write_tiny_pack


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack on which every lane is possible, with few tokens, so that drafts are sometimes right."""
    return write_tiny_pack(tmp_path_factory.mktemp("tiny"), hidden=128, heads=2, kv_heads=1, draft_vocab=192, scale=0.5)


@pytest.fixture(scope="module")
def serve(tiny: Path) -> Iterator[Callable[..., Process]]:
    """`serve("profile=turbo", ...)` on the tiny pack; all servers are stopped at the end."""
    running: list[Process] = []

    def start(*overrides: str) -> Process:
        running.append(launch(f"pack={tiny}", *overrides))
        return running[-1]

    yield start
    for process in running:
        if process.popen.poll() is None:
            assert process.stop() == 0
