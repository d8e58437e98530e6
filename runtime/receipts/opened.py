"""A window with the setting and the run that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrun.runtime.bench.micro.record import KIND as MICRO
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure.store import RUN, read_json, read_setting
from mtrun.runtime.receipts.schema import WINDOW_SCHEMA, measured

WINDOWS, ANSWERS = "windows", "answers.jsonl"


@dataclass(frozen=True)
class Receipt:
    """One window. `folder` is its run's; `run` is None where the window lies alone with its settings."""

    path: Path
    folder: Path
    window: dict[str, Any]
    setting: dict[str, Any]
    run: dict[str, Any] | None

    @property
    def label(self) -> str:
        """The cell's label, or its name where no run says one."""
        cell = self.window["cell"]
        return cell if self.run is None else self.run["cells"].get(cell, {}).get("label", cell)


def open_window(path: Path) -> Receipt:
    """A measured window and what it refers to. Raises ConfigurationError: no window, or none with a reply."""
    beside = path if path.is_dir() else path.resolve().parent
    if _is_micro(beside):
        raise ConfigurationError(
            f"{beside} is a micro run and has no windows: hold it with mtrun receipt verify {beside}"
        )
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder: give one window of it, such as {_example(path)}")
    window = read_json(path, WINDOW_SCHEMA)
    if not measured(window):
        why = window.get("refused") or window.get("error") or "it says no reason"
        raise ConfigurationError(f"{path} holds no reply ({str(why).rstrip('.')}): give another window")
    if not isinstance(window.get("setting"), str):
        raise ConfigurationError(f"{path} names no setting: give another window")
    folder = path.resolve().parent.parent
    run = read_json(folder / RUN) if (folder / RUN).is_file() else None
    return Receipt(path, folder, window, read_setting(folder, window["setting"]), run)


def _is_micro(folder: Path) -> bool:
    return (folder / RUN).is_file() and read_json(folder / RUN).get("kind") == MICRO


def _example(folder: Path) -> str:
    return str(next(iter(sorted((folder / WINDOWS).glob("*.json"))), folder / WINDOWS / "NAME.json"))
