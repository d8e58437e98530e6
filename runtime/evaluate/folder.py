"""The folder of a run of tasks: a plan that is fixed, a setting that is kept, answers that survive a kill.

run.json {schema, kind, set, set_sha256, plan, plan_sha256, command, sessions, cells, missing}, settings/, answers.jsonl
with one line an answer, summary.json.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.evaluate.contract import TaskSet
from mtrun.runtime.measure.digest import sha256_of
from mtrun.runtime.measure.store import RUN, append_line, read_json, read_lines, read_setting, write_json

if TYPE_CHECKING:
    from mtrun.runtime.preparation import Preparation

SCHEMA = "mtrun.eval.run/1"
KIND = "tasks"
ANSWERS = "answers.jsonl"
SUMMARY = "summary.json"
_SHOWN = 3  # differing keys that a refusal names

Key = tuple[str, int]  # task id, seed


@dataclass(frozen=True)
class Plan:
    """What decides which answers there are."""

    set: str
    set_sha256: str
    tasks: int  # the first so many of the set
    seeds: tuple[int, ...]
    max_tokens: int

    @classmethod
    def of(cls, asked: TaskSet, seeds: Sequence[int], max_tokens: int | None, limit: int | None) -> Plan:
        """The plan over a set; None = the set's own. Raises ConfigurationError for seeds that repeat."""
        if len(set(seeds)) != len(seeds) or not seeds:
            raise ConfigurationError(f"the seeds {', '.join(map(str, seeds))} repeat: give every seed once.")
        tasks = len(asked.tasks) if limit is None else min(limit, len(asked.tasks))
        return cls(asked.name, asked.sha256, tasks, tuple(seeds), max_tokens or asked.max_tokens)

    def keys(self, asked: TaskSet) -> list[Key]:
        """Every answer there has to be, seed by seed."""
        return [(task.id, seed) for seed in self.seeds for task in asked.tasks[: self.tasks]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"seeds": list(self.seeds)}


class RunFolder:
    """One run on disk. Made by `start`, which refuses whatever would mix two runs."""

    def __init__(self, path: Path, plan: Plan, run: dict[str, Any] | None) -> None:
        self.path, self.plan = path, plan
        self.run = run  # run.json, None until the first session begins
        self.answers = {} if run is None else read_answers(path)

    @classmethod
    def start(cls, path: Path, plan: Plan, resume: bool) -> RunFolder:
        """A new run, or with `resume` the one that is there. Raises ConfigurationError."""
        run = existing(path, resume)
        if run is None:
            return cls(path, plan, None)
        if run["kind"] != KIND or run["plan_sha256"] != sha256_of(plan.to_json()):
            told = _differences(run["plan"], plan.to_json()) or "another kind"
            raise ConfigurationError(f"{path} holds a run of another plan ({told}): give a new folder.")
        return cls(path, plan, run)

    def missing(self, asked: TaskSet) -> list[Key]:
        """The answers that the plan wants and the folder lacks, in the plan's order."""
        return [key for key in self.plan.keys(asked) if key not in self.answers]

    def check(self, found: Mapping[str, Any]) -> None:
        """Holds what a session brings (see `decisive` and `lanes`) against the first one. Raises ConfigurationError."""
        if self.run is None:
            return
        (cell,) = self.run["cells"].values()
        kept = _decided(read_setting(self.path, cell["setting"]))
        for name, value in found.items():
            if kept[name] != value:
                told = _differences(kept[name], value) if isinstance(value, dict) else "sources were changed"
                raise ConfigurationError(
                    f"{self.path} was begun under another {name} ({told}): give a new folder, or go back to that one."
                )

    def begin(self, cell: str, facts: Mapping[str, Any], command: Sequence[str], session: dict[str, Any]) -> None:
        """Writes run.json with the session; `facts` are the cell's label, overrides and setting."""
        if self.run is None:
            self.run = new_run(KIND, self.plan, command, cell, facts)
        self.run["sessions"].append(session | {"setting": facts["setting"]})
        write_json(self.path / RUN, self.run)

    def keep(self, line: dict[str, Any]) -> None:
        """One answer more, on disk when this returns."""
        append_line(self.path / ANSWERS, line)
        self.answers[line["task"], line["seed"]] = line

    def end(self, asked: TaskSet, session: Mapping[str, Any]) -> None:
        """Closes the session that began last."""
        assert self.run is not None, "a session ends after it began"
        self.run["sessions"][-1] |= {"ended": time.time(), **session}
        self.run["missing"] = [{"task": task, "seed": seed} for task, seed in self.missing(asked)]
        write_json(self.path / RUN, self.run)


class Planned(Protocol):
    """What run.json says of a plan, whatever is asked."""

    @property
    def set(self) -> str: ...

    @property
    def set_sha256(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


def new_run(kind: str, plan: Planned, command: Sequence[str], cell: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The object of run.json before its first session; `facts` are the cell's label, overrides and setting."""
    planned = plan.to_json()
    return {
        "schema": SCHEMA,
        "kind": kind,
        "set": plan.set,
        "set_sha256": plan.set_sha256,
        "plan": planned,
        "plan_sha256": sha256_of(planned),
        "command": list(command),
        "sessions": [],
        "cells": {cell: {**facts, "skipped": None}},
        "missing": [],
    }


def existing(path: Path, resume: bool) -> dict[str, Any] | None:
    """The run.json of the folder that --out names, None for a new run. Raises ConfigurationError."""
    if path.exists() and not path.is_dir():
        raise ConfigurationError(f"{path} is a file: give --out a folder.")
    if path.is_dir() and not resume and any(path.iterdir()):
        raise ConfigurationError(f"{path} is not empty: add --resume to go on with its run, or give a new folder.")
    if not (path / RUN).exists() and not (path / ANSWERS).exists():
        return None
    return read_json(path / RUN, SCHEMA)


def first_lines(path: Path, item: str) -> dict[tuple[Any, int], dict[str, Any]]:
    """The lines of a run's folder by (what `item` names, seed); of two to the same pair the first counts."""
    found: dict[tuple[Any, int], dict[str, Any]] = {}
    for line in read_lines(path / ANSWERS):
        found.setdefault((line[item], line["seed"]), line)
    return found


def read_answers(path: Path) -> dict[Key, dict[str, Any]]:
    """The answers in a run's folder, by task and seed."""
    return first_lines(path, "task")


def decisive(run: Preparation) -> dict[str, Any]:
    """What has to be the same in every session of a run, as far as it is known before a weight is read."""
    from mtrun.runtime.measure.code import source_digest
    from mtrun.runtime.measure.setting import configuration, pack_identity

    return {"configuration": configuration(run)["config"], "pack": pack_identity(run.pack), "code": source_digest()}


def lanes(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Which lanes serve, by the setting of a loaded generator: the rest of what has to be the same."""
    return {"lanes": {one["lane"]: one["state"] != "declined" for one in setting["audit"]["lanes"]}}


def _decided(setting: Mapping[str, Any]) -> dict[str, Any]:
    known = {"configuration": setting["config"], "pack": setting["pack"], "code": setting["code"]["source_sha256"]}
    return known | lanes(setting)


def _differences(kept: Any, found: Any) -> str:
    """The first keys whose values differ, each with both."""
    told = [f"{key} {_short(a)}, not {_short(b)}" for key, a, b in _leaves(kept, found, "")]
    return "; ".join(told[:_SHOWN]) + (f"; {len(told) - _SHOWN} more" if len(told) > _SHOWN else "")


def _leaves(kept: Any, found: Any, name: str) -> list[tuple[str, Any, Any]]:
    if isinstance(kept, dict) and isinstance(found, dict):
        keys = dict.fromkeys([*kept, *found])
        return [leaf for key in keys for leaf in _leaves(kept.get(key), found.get(key), f"{name}.{key}".strip("."))]
    return [] if kept == found else [(name, kept, found)]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 20 else f"{text[:17]}..."
