"""The folder of a run: `run.json`, `settings/` and one file a window, each replaced in one step.

A window's file is there whole or not at all, so a run that was killed goes on with exactly the windows it lacks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from mtrun.runtime.bench.observe import SCHEMA as WINDOW
from mtrun.runtime.bench.plan import Plan, Planned, Slot, schedule
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure.digest import sha256_of
from mtrun.runtime.measure.machine import load, session
from mtrun.runtime.measure.store import RUN, keep_setting, read_json, read_setting, write_json

SCHEMA = "mtrun.bench.run/1"
WINDOWS, SUMMARY = "windows", "summary.json"
# What two sessions of a cell have to agree on, by what is said where they do not. A commit that changes no source that
# runs is no reason to measure anew.
_SAME: Mapping[str, Callable[[Mapping[str, Any]], Any]] = MappingProxyType(
    {
        "another configuration": lambda setting: setting["config_sha256"],
        "another pack": lambda setting: setting["pack"],
        "other code": lambda setting: (setting["code"]["source_sha256"], setting.get("native_sha256")),
    }
)


@dataclass
class RunFolder:
    """A run on disk. `data` is the object of run.json; `save` makes the file equal to it."""

    path: Path
    data: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def start(cls, path: Path, plan: Planned, command: Sequence[str]) -> Self:
        """A new run; nothing is written yet. Raises ConfigurationError where the folder holds a run already."""
        if (path / RUN).exists():
            raise ConfigurationError(f"{path} holds a run: add --resume to complete it, or choose another --out")
        cells = {
            cell.name: {"label": cell.label, "overrides": list(cell.overrides), "setting": None, "skipped": None}
            for cell in plan.cells
        }
        planned = plan.to_json()
        return cls(
            path,
            {
                "schema": SCHEMA,
                "kind": plan.kind,
                "plan": planned,
                "plan_sha256": sha256_of(planned),
                "command": list(command),
                "sessions": [],
                "cells": cells,
                "missing": [],
            },
        )

    @classmethod
    def resume(cls, path: Path, plan: Planned, command: Sequence[str]) -> Self:
        """The run in the folder, or a new one. Raises ConfigurationError: the folder's run has another plan."""
        if not (path / RUN).exists():
            return cls.start(path, plan, command)
        found = cls.read(path)
        if found.data["plan_sha256"] != sha256_of(plan.to_json()):
            made = " ".join(found.data["command"])
            raise ConfigurationError(
                f"{path} was made with other options ({made}): repeat them, or choose another --out"
            )
        return found

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ConfigurationError: no run is there."""
        return cls(path, read_json(path / RUN, SCHEMA))

    @property
    def plan(self) -> Plan:
        return Plan.of_json(self.data["plan"])

    @property
    def session(self) -> int:
        """Number of the running session."""
        return len(self.data["sessions"]) - 1

    def open_session(self, preflight: Mapping[str, Any], **more: Any) -> None:
        self.data["sessions"].append({**session(), "preflight": dict(preflight), **more})
        self.save()

    def close_session(self) -> None:
        self.data["sessions"][-1] |= {"ended": time.time(), "load_after": load()}
        self.save()

    def settle(self, cell: str, setting: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Keeps a cell's setting before it serves. Returns its name, and the setting of the cell's first session: what
        its windows have to keep to. Raises ConfigurationError where something else would be measured now."""
        name, known = keep_setting(self.path, setting), self.data["cells"][cell]
        known["skipped"] = None
        if known["setting"] is None:
            known["setting"] = name
            self.save()
            return name, setting
        first = read_setting(self.path, known["setting"])
        for what, read in _SAME.items():
            if read(first) != read(setting):
                raise ConfigurationError(f"cell {cell} of {self.path} was measured with {what}: choose another --out")
        return name, first

    def skip(self, cell: str, reason: str) -> None:
        self.data["cells"][cell]["skipped"] = reason
        self.save()

    def add(self, file: str, window: Mapping[str, Any]) -> None:
        """One window more, on disk when this returns."""
        write_json(self.path / WINDOWS / file, window, compact=True)

    def windows(self) -> list[dict[str, Any]]:
        """Every window of this plan, warm-ups too, by file name."""
        found = [read_json(path, WINDOW) for path in sorted((self.path / WINDOWS).glob("*.json"))]
        return [window for window in found if window["plan_sha256"] == self.data["plan_sha256"]]

    def lacking(self) -> list[Slot]:
        """Windows that have no file yet, in the order of measurement. What died or was refused has its file."""
        return [slot for slot in schedule(self.plan) if not (self.path / WINDOWS / slot.file).exists()]

    def save(self) -> None:
        self.data["missing"] = self._missing()
        write_json(self.path / RUN, self.data)

    def _missing(self) -> list[dict[str, Any]]:
        return [
            {
                "cell": slot.cell,
                "seed": slot.seed,
                "prompt": slot.prompt,
                "round": slot.round,
                "context_asked": slot.context,
                "reason": self.data["cells"][slot.cell]["skipped"] or "not measured",
            }
            for slot in self.lacking()
        ]


def split_of(windows: Iterable[Mapping[str, Any]], cell: str) -> Mapping[str, float] | None:
    """The split that a cell's extra window found, None where there is none."""
    found = (one["split_ms"] for one in windows if one["cell"] == cell and one.get("split"))
    return next((split for split in found if split), None)
