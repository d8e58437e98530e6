"""What a run folder keeps beside its checkpoint: `run.json` (what went in and came out), `log.jsonl` (the curve)."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import ConfigurationError

RUN, LOG = "run.json", "log.jsonl"


@dataclass(frozen=True)
class Report:
    """One line of the log."""

    step: int
    epoch: int
    loss: float  # nats, depth 1, mean over the steps since the line before
    lr: float
    seconds: float  # spent in steps since the run began
    progress: float  # share of the schedule
    depth: int  # chain length trained at that time
    overlap: list[float] | None = None  # held-out, by depth; None = not measured at this line


def append(folder: Path, report: Report) -> None:
    """Adds one line to the log."""
    line = {key: value for key, value in asdict(report).items() if value is not None}
    with (folder / LOG).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The log's lines in order; a line that a killed run left unfinished is passed over."""
    path = folder / LOG
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "step" in entry and "loss" in entry:
            found.append(entry)
    return found


def cut_log(folder: Path, step: int) -> None:
    """Drops the lines after `step`: a run that was killed goes on from an earlier checkpoint and writes them again."""
    kept = [entry for entry in read_log(folder) if entry["step"] <= step]
    if kept or (folder / LOG).exists():
        _replace(folder / LOG, "".join(json.dumps(entry) + "\n" for entry in kept))


def write_run(folder: Path, facts: dict[str, Any]) -> None:
    """`run.json`, replaced whole."""
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / RUN, json.dumps(facts, indent=1) + "\n")


def read_run(folder: Path) -> dict[str, Any]:
    """The content of `run.json`, empty where there is none. Raises ConfigurationError for a damaged one."""
    path = folder / RUN
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}): run the training command again.") from error
    return found if isinstance(found, dict) else {}


def clear(folder: Path, *names: str) -> None:
    """Removes files of an earlier run."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
