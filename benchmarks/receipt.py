"""The receipt of a measurement: one JSON file with the plan, each cell's configuration and audits, and every window.

{schema, plan, plan_sha256, command, code{commit, changes_sha256}, sessions[...], skipped_sides{side: reason}, pack,
cells{"side/cell": {overrides, config, config_sha256, sampler, provenance, warnings, audit_before, audit_after}},
windows[{side, cell, seed, prompt, round, request_seed, session, warm_up, nll, ...what `window.measure` returns}]}

The file is replaced as a whole after every window, so that a killed run keeps all it has measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cells import Plan, Slot
from mtrun.runtime.measure.code import code_identity
from mtrun.runtime.measure.digest import sha256_of

SCHEMA = "mtrun.bench.laws/1"
ROOT = Path(__file__).resolve().parents[1]


class ReceiptError(Exception):
    """A receipt cannot be read, or belongs to another plan. The message says what to type."""


@dataclass
class Receipt:
    """A receipt on disk. `data` is the JSON object; `save` makes the file equal to it."""

    path: Path
    data: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def start(path: Path, plan: Plan, command: Iterable[str]) -> Receipt:
        """A new receipt. Raises ReceiptError where the file exists already."""
        if path.exists():
            raise ReceiptError(f"{path} exists: add --resume to complete it, or choose another --out")
        plan_json = plan.to_json()
        return Receipt(
            path,
            {
                "schema": SCHEMA,
                "plan": plan_json,
                "plan_sha256": sha256_of(plan_json),
                "command": list(command),
                "code": code_identity(),
                "sessions": [],
                "skipped_sides": {},
                "pack": None,
                "cells": {},
                "windows": [],
            },
        )

    @staticmethod
    def resume(path: Path, plan: Plan, command: Iterable[str]) -> Receipt:
        """The receipt on disk, or a new one where there is none. Raises ReceiptError: other plan, other code."""
        if not path.exists():
            return Receipt.start(path, plan, command)
        found = Receipt.read(path)
        check_same(path, found.data, plan.to_json())
        return found

    @staticmethod
    def read(path: Path) -> Receipt:
        """Raises ReceiptError: absent, unreadable, or of another schema."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ReceiptError(f"cannot read the receipt {path} ({error}): give the --out of a measurement") from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ReceiptError(f"{path} is no receipt of schema {SCHEMA}: measure again")
        return Receipt(path, data)

    @property
    def plan(self) -> Plan:
        return Plan.of_json(self.data["plan"])

    def done(self) -> set[tuple[str, str, int, int]]:
        """The keys of windows that need not be measured again. Warm-up windows never count."""
        return {
            (one["side"], one["cell"], one["seed"], one["prompt"]) for one in self.data["windows"] if not one["warm_up"]
        }

    def add(self, slot: Slot, warm_up: bool, measured: dict[str, Any]) -> None:
        """Append a window of the current session and save."""
        head = {**asdict(slot), "request_seed": slot.request_seed, "warm_up": warm_up}
        self.data["windows"].append({**head, "session": len(self.data["sessions"]) - 1, **measured})
        self.save()

    def save(self) -> None:
        """Replace the file in one step: after a kill it is the old or the new one, whole."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        staged = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with staged.open("w", encoding="utf-8") as file:
            json.dump(self.data, file, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        staged.replace(self.path)


def check_same(path: Path, held: dict[str, Any], plan: dict[str, Any]) -> None:
    """Raises ReceiptError where what `path` holds was measured by another plan or by other code."""
    if held["plan_sha256"] != sha256_of(plan):
        raise ReceiptError(f"{path} was made with other options: repeat them, or choose another --out")
    if held["code"] != code_identity():
        raise ReceiptError(f"{path} was made by other code ({held['code']['commit']}): choose another --out")


def verdicts_of(registry: Any) -> list[dict[str, Any]]:
    """A registry's verdicts as JSON: lane, state, reason, who decided, and the figures of its proof."""
    return [
        {
            "lane": verdict.lane,
            "state": verdict.state.value,
            "reason": verdict.reason,
            "decided_by": verdict.decided_by.source,
            "figures": None if verdict.proof is None else dict(verdict.proof.figures),
        }
        for verdict in registry.verdicts()
    ]
