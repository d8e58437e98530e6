"""Which code measured: the checkout's commit where there is one, and a digest of the sources that run in any case."""

from __future__ import annotations

import hashlib
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mtrun.runtime.measure.digest import sha256_of

FOLDERS = ("runtime", "lanes", "kernels", "conf")  # what decides what is served


def code_identity() -> dict[str, Any]:
    """commit and changes_sha256 (of what differs from it; null outside of git), source_sha256 (of every source)."""
    commit = _git("rev-parse", "HEAD")
    changes = _git("diff", "HEAD", "--", *FOLDERS)
    return {
        "commit": commit and commit.strip(),
        "changes_sha256": sha256_of(changes) if changes else None,
        "source_sha256": source_digest(),
    }


def root() -> Path:
    """The folder that holds `runtime`: a checkout, or the package as installed."""
    return Path(__file__).resolve().parents[2]


def source_digest() -> str:
    """Hex sha256 over the Python and YAML sources of the package by name; equal for a checkout and its wheel."""
    total = hashlib.sha256()
    for folder in FOLDERS:
        spec = find_spec(f"mtrun.{folder}")
        assert spec is not None
        for place in spec.submodule_search_locations or ():
            for path in sorted(Path(place).rglob("*")):
                if path.suffix in (".py", ".yaml"):
                    total.update(f"{folder}/{path.relative_to(place).as_posix()}\n".encode())
                    total.update(path.read_bytes())
    return total.hexdigest()


def _git(*words: str) -> str | None:
    if not (root() / ".git").exists():
        return None
    try:
        ran = subprocess.run(["git", *words], cwd=root(), capture_output=True, text=True, check=False)
    except OSError:
        return None
    return ran.stdout if ran.returncode == 0 else None
