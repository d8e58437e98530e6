"""Folders of runs as a report reads them: what counts, what was refused, what died, what is not there.

A bench run (`mtrun.bench.run/1`) has one file a window in `windows/`; an eval run (`mtrun.eval.run/1`) has one line an
answer in `answers.jsonl`. Both share `run.json` and `settings/`. A bench run of kind `micro` has no windows: its cells
are parts of mtrun, and `micro.json` has their cases.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mtrun.runtime.acceptance.counts import Counts
from mtrun.runtime.bench.micro.record import FILE as CASES
from mtrun.runtime.bench.micro.record import KIND as MICRO
from mtrun.runtime.bench.micro.record import problem, read_cases
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure.digest import ids_digest
from mtrun.runtime.measure.figures import Window, contended
from mtrun.runtime.measure.store import RUN, SETTINGS, read_json, read_lines, read_setting

BENCH, EVAL, WINDOW = "mtrun.bench.run/1", "mtrun.eval.run/1", "mtrun.window/1"
WINDOWS, ANSWERS = "windows", "answers.jsonl"

_CAP = re.compile(r"\bcap\b")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")  # in names of files


@dataclass(frozen=True, order=True)
class Slot:
    """One place of a run's grid. `level` is the context asked for in tokens, 0 where the run has no such axis."""

    level: int
    seed: int
    prompt: int
    round: int

    def __str__(self) -> str:
        parts = [f"seed {self.seed}", f"prompt {self.prompt}"]
        parts += [f"round {self.round}"] if self.round else []
        return ", ".join(([f"context {self.level}"] if self.level else []) + parts)


@dataclass(frozen=True)
class Lost:
    """A window that does not count: `what` is missing, refused, dead or over the memory cap."""

    what: str
    cell: str
    slot: Slot | None
    reason: str

    def __str__(self) -> str:
        where = f"{self.cell}, {self.slot}" if self.slot else self.cell
        return f"{self.what}: {where}: {self.reason.rstrip('.')}."


@dataclass(frozen=True)
class Run:
    """One folder, read. `name` is unique within a report; `windows` are in the order (cell, slot)."""

    name: str
    folder: Path
    data: Mapping[str, Any]
    settings: Mapping[str, Mapping[str, Any]]  # cell -> setting, for cells that were measured
    windows: tuple[Window, ...]
    answers: tuple[Mapping[str, Any], ...]
    files: Mapping[str, str]  # receipt's path within the folder -> cell it belongs to, "" = the whole run
    cases: tuple[Mapping[str, Any], ...] = ()  # of a micro run, in its order

    @property
    def kind(self) -> str:
        return self.data["kind"]

    @property
    def is_eval(self) -> bool:
        return self.data["schema"] == EVAL

    @property
    def is_micro(self) -> bool:
        return self.kind == MICRO

    @property
    def made_by(self) -> tuple[Mapping[str, Any], ...]:
        """Whatever states the code that measured: settings, and the sessions of a run that has none."""
        return (*self.settings.values(), *(one for one in self.data["sessions"] if "code" in one))

    @property
    def plan(self) -> Mapping[str, Any]:
        return self.data["plan"]

    @property
    def cells(self) -> Mapping[str, Mapping[str, Any]]:
        return self.data["cells"]

    @property
    def pack(self) -> str:
        """The pack that the settings name; a micro run measures none."""
        if self.is_micro:
            return "-"
        return next((one["pack"]["name"] for one in self.settings.values()), "unknown pack")

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Contexts of a ladder, ascending; empty for a run without that axis."""
        if self.kind != "ladder":
            return ()
        return tuple(
            sorted(self.plan.get("contexts") or {one["context"] for one in self.windows if one.get("context")})
        )

    def slot(self, window: Window) -> Slot:
        """Where a window belongs. A prompt of nearly the context asked for is counted at that context."""
        context = window.get("context_asked") or window.get("context") or 0
        level = min(self.levels, key=lambda one: abs(one - context), default=0)
        return Slot(level, window["seed"], window["prompt"], window.get("round") or 0)

    @cached_property
    def counted(self) -> Mapping[str, Mapping[Slot, Window]]:
        """cell -> slot -> the window that counts there."""
        found: dict[str, dict[Slot, Window]] = {cell: {} for cell in self.cells}
        for window in self.windows:
            if not window.get("warm_up") and self._problem(window) is None:
                found[window["cell"]][self.slot(window)] = window
        return found

    @cached_property
    def lost(self) -> tuple[Lost, ...]:
        """Every window, and every case, that was asked for and does not count, with the reason."""
        if self.is_micro:
            return tuple(self._untimed())
        found = list(self._unusable())
        told = {(one.cell, one.slot) for one in found}
        for cell, state in self.cells.items():
            if state.get("skipped"):
                found.append(Lost("skipped", cell, None, state["skipped"]))
                continue
            gone = sorted(self.expected - self.counted[cell].keys())
            found += [Lost("missing", cell, slot, "no window") for slot in gone if (cell, slot) not in told]
            if not (self.is_eval or self.expected):
                found.append(Lost("missing", cell, None, "no window at all"))
        return tuple(found)

    @cached_property
    def expected(self) -> frozenset[Slot]:
        """Slots that every cell must have: those of the plan, and those that any cell has."""
        return frozenset(_planned(self.plan)) | {self.slot(one) for one in self.windows if not one.get("warm_up")}

    @cached_property
    def contended(self) -> int:
        """Counted windows that something else took the core from, see `measure.figures`."""
        return sum(contended(own.values()) for own in self.counted.values())

    @property
    def warm_ups(self) -> int:
        """Windows that prepared others: never counted. Those that only time the parts of a cycle are none of them."""
        return sum(bool(window.get("warm_up") and not window.get("split")) for window in self.windows)

    def _problem(self, window: Window) -> tuple[str, str] | None:
        """Why a window may not count, as (what, sentence)."""
        if window.get("error"):
            return "dead", window["error"]
        if window.get("refused"):
            capped = "memory" in window["refused"] and _CAP.search(window["refused"])
            return ("over the memory cap" if capped else "refused"), window["refused"]
        if window["plan_sha256"] != self.data["plan_sha256"]:
            return "refused", "it was measured for another plan"
        if ids_digest(window["ids"]) != window["digest"]:
            return "refused", "its token ids do not have the digest it states"
        problems = Counts(**window["counts"]).identities()
        return ("refused", problems[0]) if problems else None

    def _untimed(self) -> Iterator[Lost]:
        """Cases of a micro run without figures, and parts without cases."""
        for case in self.cases:
            if why := problem(case):
                what = "dead" if case["error"] else "skipped"
                yield Lost(what, f"{case['cell']}, {case['group']}, {case['name']}", None, why)
        for entry in self.data.get("missing") or ():
            yield Lost("missing", entry["cell"], None, entry["reason"])

    def _unusable(self) -> Iterator[Lost]:
        for window in self.windows:
            problem = None if window.get("warm_up") else self._problem(window)
            slot = self.slot(window)
            if problem and slot not in self.counted[window["cell"]]:
                yield Lost(problem[0], window["cell"], slot, problem[1])
        for entry in self.data.get("missing") or ():
            yield from (self._unanswered(entry) if self.is_eval else self._stated(entry))

    def _unanswered(self, entry: Any) -> Iterator[Lost]:
        """An answer that an eval run says it lacks, unless it has come since."""
        unit = "task" if self.kind == "tasks" else "prompt"
        known = {(answer[unit], answer["seed"]) for answer in self.answers}
        if (entry.get(unit), entry.get("seed")) not in known:
            yield Lost("missing", next(iter(self.cells)), None, f"{unit} {entry.get(unit)}, seed {entry.get('seed')}")

    def _stated(self, entry: Any) -> Iterator[Lost]:
        """A line of run.json's own list, where no window has come since."""
        if isinstance(entry, str):
            yield Lost("missing", entry, None, "stated by the run")
        elif entry.get("cell") in self.cells:
            slot = self.slot(entry) if "seed" in entry and "prompt" in entry else None
            if slot is None or slot not in self.expected:
                reason = entry.get("reason") or "no window"
                yield Lost("missing", entry["cell"], slot, reason)


def slug(text: str) -> str:
    """A name that is safe in file names and page anchors."""
    return _UNSAFE.sub("-", text).strip("-.") or "run"


def told(lost: Sequence[Lost]) -> list[str]:
    """A sentence each; windows of one cell and context that share a reason share a sentence."""
    groups: dict[tuple[str, str, int | None, str], list[Lost]] = {}
    for one in lost:
        groups.setdefault((one.what, one.cell, one.slot and one.slot.level, one.reason), []).append(one)
    return [str(group[0]) if len(group) == 1 else _together(group) for group in groups.values()]


def _together(group: Sequence[Lost]) -> str:
    first, slots = group[0], [one.slot for one in group if one.slot]
    level = f", context {slots[0].level}" if slots and slots[0].level else ""
    seeds: dict[int, list[str]] = {}
    for slot in slots:
        seeds.setdefault(slot.seed, []).append(f"{slot.prompt}.{slot.round}" if slot.round else str(slot.prompt))
    where = "; ".join(f"seed {seed}: {', '.join(prompts)}" for seed, prompts in sorted(seeds.items()))
    return f"{first.what}: {first.cell}{level}, {len(group)} windows (prompts of {where}): {first.reason.rstrip('.')}."


def read_run(folder: Path, name: str) -> Run:
    """Reads a run's folder. Raises ConfigurationError on one that is none, or whose receipts do not fit each other."""
    data = read_json(folder / RUN)
    if data.get("schema") not in (BENCH, EVAL):
        raise ConfigurationError(f"{folder} is no run of mtrun bench or mtrun eval: give the folder of one.")
    absent = [key for key in ("kind", "plan", "plan_sha256", "cells", "sessions") if key not in data]
    if absent:
        raise ConfigurationError(f"{folder / RUN} lacks {', '.join(absent)}: measure again.")
    files = {RUN: ""}
    settings: dict[str, Mapping[str, Any]] = {}
    for cell, state in data["cells"].items():
        if state.get("setting"):
            settings[cell] = read_setting(folder, state["setting"])
            path = f"{SETTINGS}/{state['setting']}.json"
            files[path] = "" if path in files else cell  # two cells of one setting share its file
    windows = _read_windows(folder, data, files)
    answers = tuple(read_lines(folder / ANSWERS))
    if (folder / ANSWERS).is_file():
        files[ANSWERS] = next(iter(data["cells"]))
    cases = tuple(read_cases(folder, data["plan_sha256"])) if data["kind"] == MICRO else ()
    files |= {CASES: ""} if cases else {}
    return Run(name, folder, data, settings, windows, answers, files, cases)


def read_runs(folders: Sequence[Path]) -> tuple[Run, ...]:
    """Every run, named by its folder; a second folder of one name gets a number."""
    if not folders:
        raise ConfigurationError("a report needs runs: mtrun report RUN... --out FOLDER.")
    names = [slug(folder.resolve().name) for folder in folders]
    seen: Counter[str] = Counter()
    runs = []
    for folder, name in zip(folders, names, strict=True):
        seen[name] += 1
        runs.append(read_run(folder, name if names.count(name) == 1 else f"{name}-{seen[name]}"))
    return tuple(runs)


def _planned(plan: Mapping[str, Any]) -> Iterator[Slot]:
    """The grid of a bench plan: each seed moves on by its number of prompts."""
    if not all(isinstance(plan.get(key), list) for key in ("seeds", "prompts")):
        return
    every = len(plan["prompts"])
    count = min(plan.get("per_seed") or every, every)
    for position, seed in enumerate(plan["seeds"]):
        for step in range(count):
            for level in plan.get("contexts") or (0,):
                for turn in range(plan.get("rounds") or 1):
                    yield Slot(level, seed, (position * count + step) % every, turn)


def _read_windows(folder: Path, data: Mapping[str, Any], files: dict[str, str]) -> tuple[Window, ...]:
    found = []
    for path in sorted((folder / WINDOWS).glob("*.json")):
        window = read_json(path, WINDOW)
        if window["cell"] not in data["cells"]:
            raise ConfigurationError(f"{path} is of a cell that {folder / RUN} does not know: measure again.")
        files[f"{WINDOWS}/{path.name}"] = window["cell"]
        found.append(window)
    order = {cell: number for number, cell in enumerate(data["cells"])}
    return tuple(sorted(found, key=lambda one: (order[one["cell"]], one["seed"], one["prompt"], one.get("round") or 0)))
