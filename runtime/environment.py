"""The one place where mtrun reads the environment: cache folders and secrets, never settings.

| variable | meaning |
|---|---|
| `MTRUN_CACHE` | folder for fetched packs and other files that can be made again; default: the user's cache folder |
| `MTRUN_API_KEY` | key that clients of the server must send; a secret, so it does not belong on a command line |
"""

from __future__ import annotations

import os
import platform
from pathlib import Path


def cache_folder() -> Path:
    """`MTRUN_CACHE`, else `~/.cache/mtrun`, on macOS `~/Library/Caches/mtrun`. Not created here."""
    chosen = os.environ.get("MTRUN_CACHE", "").strip()
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path.home() / ("Library/Caches/mtrun" if platform.system() == "Darwin" else ".cache/mtrun")


def api_key() -> str | None:
    """`MTRUN_API_KEY`, None when unset or blank."""
    return os.environ.get("MTRUN_API_KEY", "").strip() or None


def child_environment(**changes: str) -> dict[str, str]:
    """The environment of a child process: this one's with `changes`."""
    return {**os.environ, **changes}
