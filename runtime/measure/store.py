"""Files of measurements: written whole or not at all, read with a check, settings kept once by their digest.

A run's folder holds `run.json`, `settings/<digest>.json` and whatever its protocol adds (`windows/`, `answers.jsonl`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure.digest import sha256_of

SETTINGS = "settings"
RUN = "run.json"
_SHORT = 16  # hex digits of a setting's name


def write_json(path: Path, value: object, compact: bool = False) -> None:
    """Replaces `path` in one step: after a kill it is the old or the new file, whole. Raises ConfigurationError.

    compact: on one line, for files that hold long lists of numbers.
    """
    shape: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 1}
    write_text(path, json.dumps(value, allow_nan=False, **shape) + "\n")


def write_text(path: Path, text: str) -> None:
    """The same for text."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with staged.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except OSError as error:
        staged.unlink(missing_ok=True)
        raise ConfigurationError(
            f"{path} cannot be written ({error.strerror}): free space or choose another folder."
        ) from error


def read_json(path: Path, schema: str | None = None) -> dict[str, Any]:
    """The JSON object in `path`, of `schema` if one is given. Raises ConfigurationError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}): give a file that a measurement wrote.") from error
    if not isinstance(found, dict) or (schema is not None and found.get("schema") != schema):
        raise ConfigurationError(f"{path} holds no object of schema {schema}: measure again, or give another file.")
    return found


def keep_setting(folder: Path, setting: Mapping[str, Any]) -> str:
    """Stores a setting in the run's folder under its digest, which is returned (16 hex digits)."""
    name = sha256_of(setting)[:_SHORT]
    path = folder / SETTINGS / f"{name}.json"
    if not path.exists():
        write_json(path, setting)
    return name


def read_setting(folder: Path, name: str) -> dict[str, Any]:
    """A setting by its digest. Raises ConfigurationError where it is absent or no longer what its name says."""
    found = read_json(folder / SETTINGS / f"{name}.json")
    if sha256_of(found)[:_SHORT] != name:
        raise ConfigurationError(f"{folder / SETTINGS / name}.json was changed after it was measured: measure again.")
    return found


def append_line(path: Path, value: object) -> None:
    """One JSON object more in a JSONL file, on disk when this returns; a line that a kill cut short is closed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(value, allow_nan=False, ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file; a line that is no JSON object (cut short by a kill) is left out.

    A line ends at a newline alone: a text may hold any other separator that Unicode has.
    """
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found
