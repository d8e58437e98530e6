from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own ~/.config/mtrun must not reach a test."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))


@pytest.fixture
def write_profile(tmp_path: Path) -> Callable[..., Path]:
    """Write DIR/profile/NAME.yaml and return DIR."""

    def write(name: str, text: str | bytes, header: str = "# @package _global_\n") -> Path:
        folder = tmp_path / "own"
        (folder / "profile").mkdir(parents=True, exist_ok=True)
        content = text if isinstance(text, bytes) else (header + text).encode()
        (folder / "profile" / f"{name}.yaml").write_bytes(content)
        return folder

    return write
