"""Packs that ship with mtrun itself, one folder each under `embedded/`: they work without a network."""

from __future__ import annotations

from pathlib import Path

from mtrun.runtime.packs.members import MANIFEST


def embedded_packs() -> dict[str, Path]:
    """Name -> folder of every pack that this install brought."""
    root = Path(__file__).parent / "embedded"
    found = sorted(root.iterdir()) if root.is_dir() else []
    return {folder.name: folder for folder in found if (folder / MANIFEST).is_file()}
