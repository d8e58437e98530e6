"""The receipts of a run: a folder with `run.json` (plan, machine, peers, sessions) and one file a window.

run.json: {schema, plan, plan_sha256, command, code{commit, changes_sha256}, sessions[...], peers{name: what its `open`
told}, skipped{name: reason}}. windows/RRR-MEASURE-PEER.json: {round, measure, peer, session, started, load,
figures{name: {tokens, seconds, cpu_seconds}}, ...what the peer told of the window}. A file is replaced as a whole, so
that a killed run keeps all it has measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.plan import Plan, Slot
from mtrun.runtime.measure.code import code_identity
from mtrun.runtime.measure.digest import sha256_of
from mtrun.runtime.measure.store import write_json

SCHEMA = "mtrun.bench.peers/1"


class ReceiptError(Exception):
    """A run cannot be read, or what is asked for does not belong to it. The message says what to type."""


@dataclass
class Folder:
    """The receipts on disk. `run` is run.json, `windows` the windows by slot."""

    path: Path
    run: dict[str, Any]
    windows: dict[Slot, dict[str, Any]] = field(default_factory=dict)

    @staticmethod
    def start(path: Path, plan: Plan, command: Sequence[str]) -> Folder:
        """A new run. Raises ReceiptError where the folder holds one already."""
        if (path / "run.json").exists():
            raise ReceiptError(f"{path} holds a run: add --resume to complete it, or choose another --out")
        shown = plan.to_json()
        head = {"schema": SCHEMA, "plan": shown, "plan_sha256": sha256_of(shown), "command": list(command)}
        return Folder(path, {**head, "code": code_identity(), "sessions": [], "peers": {}, "skipped": {}})

    @staticmethod
    def resume(path: Path, plan: Plan, command: Sequence[str]) -> Folder:
        """The run on disk, or a new one where there is none. Raises ReceiptError: other plan, other code."""
        if not (path / "run.json").exists():
            return Folder.start(path, plan, command)
        found = Folder.read(path)
        if found.run["plan_sha256"] != sha256_of(plan.to_json()):
            raise ReceiptError(f"{path} was made with other options: repeat them, or choose another --out")
        if found.run["code"] != code_identity():
            raise ReceiptError(f"{path} was made by other code ({found.run['code']['commit']}): choose another --out")
        return found

    @staticmethod
    def read(path: Path) -> Folder:
        """Raises ReceiptError: absent, unreadable, or of another schema."""
        run = _read(path / "run.json")
        if run.get("schema") != SCHEMA:
            raise ReceiptError(f"{path} is no run of schema {SCHEMA}: measure again")
        windows = {}
        for file in sorted((path / "windows").glob("[!.]*.json")):
            window = _read(file)
            windows[Slot(window["round"], window["measure"], window["peer"])] = window
        return Folder(path, run, windows)

    @property
    def plan(self) -> Plan:
        return Plan.of_json(self.run["plan"])

    def add(self, slot: Slot, window: dict[str, Any]) -> None:
        """Keeps a window of the current session; it replaces an earlier one of its slot."""
        head = {"round": slot.round, "measure": slot.measure, "peer": slot.entry}
        self.windows[slot] = {**head, "session": len(self.run["sessions"]) - 1, **window}
        write_json(self.path / "windows" / slot.file, self.windows[slot])

    def save(self) -> None:
        """Makes run.json equal to `run`."""
        write_json(self.path / "run.json", self.run)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ReceiptError(f"cannot read {path} ({error}): give the --out of a measurement") from error
    if not isinstance(found, dict):
        raise ReceiptError(f"{path} is no receipt of schema {SCHEMA}: measure again")
    return found
