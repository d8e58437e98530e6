"""Receipts held against themselves: shapes, digests, identities of counters, rates, windows that a plan promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtrun.runtime.acceptance.counts import Counts
from mtrun.runtime.acceptance.rates import rates
from mtrun.runtime.bench.micro.record import FILE as CASES
from mtrun.runtime.bench.micro.record import KIND as MICRO
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure.digest import ids_digest, sha256_of
from mtrun.runtime.measure.store import RUN, SETTINGS, read_json, read_setting
from mtrun.runtime.receipts.opened import WINDOWS
from mtrun.runtime.receipts.schema import RUN as RUN_SHAPE
from mtrun.runtime.receipts.schema import RUNS, SETTING, WINDOW_SCHEMA, measured, problems, window_problems
from mtrun.runtime.receipts.verify_answers import answers_problems
from mtrun.runtime.receipts.verify_cases import cases_problems

ROUNDING = 1e-9  # relative, between a rate as stored and as computed here
_DECISIVE = ("config_sha256", "pack")  # what every session of a cell has to share
_DECLINED = "declined"


@dataclass
class Verified:
    """What was looked at, and what is wrong with it: one line a problem, each with the file it is in."""

    windows: int = 0
    answers: int = 0
    cases: int = 0
    settings: int = 0
    lines: list[str] = field(default_factory=list)

    def add(self, where: object, found: Iterator[str] | list[str]) -> None:
        self.lines += [f"{where}: {line}" for line in found]

    @property
    def summary(self) -> str:
        """What was looked at, in a line."""
        counted = {"window": self.windows, "answer": self.answers, "case": self.cases, "setting": self.settings}
        told = [f"{count} {name}{'s' * (count != 1)}" for name, count in counted.items() if count]
        return ", ".join(told) or "nothing"


def verify(path: Path) -> Verified:
    """Looks at a window's file, a run's folder, or its micro.json. Raises ConfigurationError for anything else."""
    done = Verified()
    if path.is_dir() or path.name == CASES:
        _run(path if path.is_dir() else path.resolve().parent, done)
        return done
    window = read_json(path, WINDOW_SCHEMA)
    folder = path.resolve().parent.parent
    known = read_json(folder / RUN) if (folder / RUN).is_file() else None
    settings = {}
    if isinstance(window.get("setting"), str):
        settings[window["setting"]] = _setting(folder, window["setting"], done)
    _window(path.name, window, settings, known, done)
    return done


def _run(folder: Path, done: Verified) -> None:
    run = read_json(folder / RUN)
    if run.get("schema") not in RUNS:
        raise ConfigurationError(f"{folder} is no run of {' or '.join(RUNS)}: give the folder of one")
    wrong = problems(run, RUN_SHAPE)
    done.add(RUN, wrong)
    if wrong:
        return
    if sha256_of(run["plan"]) != run["plan_sha256"]:
        done.add(RUN, ["plan_sha256 is not the digest of the plan"])
    names = sorted(path.stem for path in (folder / SETTINGS).glob("*.json"))
    settings = {name: _setting(folder, name, done) for name in names}
    for cell, state in run["cells"].items():
        if state["setting"] is not None and state["setting"] not in settings:
            done.add(RUN, [f"the setting {state['setting']} of cell {cell} is not in {SETTINGS}"])
    if RUNS[run["schema"]] == "eval":
        done.answers, found = answers_problems(folder, run)
        done.lines += found
        return
    if run["kind"] == MICRO:
        done.cases, found = cases_problems(folder, run)
        done.lines += found
        return
    windows = _windows(folder, done)
    for name, window in windows.items():
        _window(name, window, settings, run, done)
    done.add(RUN, _promised(run, windows))


def _windows(folder: Path, done: Verified) -> dict[str, dict[str, Any]]:
    """Every readable window by the name of its file."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / WINDOWS).glob("*.json")):
        try:
            found[path.name] = read_json(path, WINDOW_SCHEMA)
        except ConfigurationError as error:
            done.add(path.name, [str(error)])
    return found


def _setting(folder: Path, name: str, done: Verified) -> dict[str, Any] | None:
    """A setting that is what its name says; None with a problem where it is not."""
    done.settings += 1
    where = f"{SETTINGS}/{name}.json"
    try:
        setting = read_setting(folder, name)
    except ConfigurationError as error:
        done.add(where, [str(error)])
        return None
    wrong = problems(setting, SETTING)
    if not wrong and sha256_of(setting["config"]) != setting["config_sha256"]:
        wrong = ["config_sha256 is not the digest of the configuration"]
    done.add(where, wrong)
    return None if wrong else setting


def _window(
    name: str,
    window: Mapping[str, Any],
    settings: Mapping[str, Mapping[str, Any] | None],
    run: Mapping[str, Any] | None,
    done: Verified,
) -> None:
    done.windows += 1
    where = f"{WINDOWS}/{name}"
    wrong = window_problems(window)
    if wrong:
        done.add(where, wrong)
        return
    if run is not None:
        done.add(where, _belongs(window, settings, run))
    setting = None
    if window["setting"] is not None:
        setting = settings.get(window["setting"])
        if window["setting"] not in settings:
            done.add(where, [f"its setting {window['setting']} is not in {SETTINGS}"])
    if measured(window):
        done.add(where, _reply(window))
        done.add(where, _counters(window))
        if setting is not None and window["refused"] is None:
            done.add(where, _as_set(window, setting))


def _belongs(
    window: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any] | None], run: Mapping[str, Any]
) -> Iterator[str]:
    """A window of this run: its plan, its cell, and what that cell was set to."""
    if window["plan_sha256"] != run["plan_sha256"]:
        yield "it was measured for another plan"
    cell = run["cells"].get(window["cell"])
    if cell is None:
        yield f"its cell {window['cell']} is none of the run's"
        return
    ours, first = settings.get(window["setting"]), settings.get(cell["setting"])
    if ours is not None and first is not None:
        changed = [part for part in _DECISIVE if ours[part] != first[part]]
        changed += [] if ours["code"]["source_sha256"] == first["code"]["source_sha256"] else ["code"]
        if changed:
            yield f"its setting has another {' and '.join(changed)} than that of its cell"


def _reply(window: Mapping[str, Any]) -> Iterator[str]:
    """Digests and lengths."""
    ids, asked = window["ids"], window["tokens"]
    if ids_digest(ids) != window["digest"]:
        yield "digest is not that of its token ids"
    if ids_digest(window["prompt_ids"]) != window["prompt_digest"]:
        yield "prompt_digest is not that of its prompt"
    if window["context"] != len(window["prompt_ids"]):
        yield f"context is {window['context']} and the prompt has {len(window['prompt_ids'])} tokens"
    if len(ids) != asked and window["refused"] is None:
        yield f"{asked} tokens were asked for, and it holds {len(ids)}"


def _counters(window: Mapping[str, Any]) -> Iterator[str]:
    """Identities, and everything that is computed from counters."""
    counts = Counts.of_json(window["counts"])
    yield from counts.identities()
    if counts.generated != len(window["ids"]):
        yield f"counts.generated is {counts.generated}, and it holds {len(window['ids'])} tokens"
    plain = counts.verify_calls - counts.cycles  # forwards that judged nothing, one token each
    made = 1 + plain + counts.emitted - counts.truncated  # the first token comes from the prompt's own forward
    if window["reason"] == "length" and window["ids"] and made != counts.generated:
        yield f"its cycles made {made} tokens, and counts.generated is {counts.generated}"
    for name, value in rates(counts).items():
        if not _equal(value, window["rates"][name]):
            yield f"rates.{name} is {window['rates'][name]}, and its counters say {value}"
    for name, one in ((window["shadow"] or {}) if window["law"]["engaged"] else {}).items():
        reached = sum(depth["positions"] for depth in one["per_depth"])
        if not one["kept"] <= one["positions"] == reached == counts.positions:
            yield f"shadow.{name} saw {one['positions']} positions of {counts.positions}, {reached} by depth"


def _as_set(window: Mapping[str, Any], setting: Mapping[str, Any]) -> Iterator[str]:
    """The law that decided and the lanes that were in place are those of the setting."""
    for key in ("law", "rule", "parameters"):
        if window["law"][key] != setting["law"][key]:
            yield f"law.{key} is {window['law'][key]}, and its setting says {setting['law'][key]}"
    before = {lane["lane"]: lane["state"] == _DECLINED for lane in setting["audit"]["lanes"]}
    after = {lane: verdict[0] == _DECLINED for lane, verdict in window["verdicts"].items()}
    other = [lane for lane in dict.fromkeys((*before, *after)) if before.get(lane) != after.get(lane)]
    if other:
        yield f"the verdict of {', '.join(other)} is not that of its setting"


def _promised(run: Mapping[str, Any], windows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Every window of the plan is there once, or listed as missing and not there."""
    from mtrun.runtime.bench.plan import Plan, schedule

    try:
        slots = schedule(Plan.of_json(run["plan"]))
    except (KeyError, TypeError, IndexError, ZeroDivisionError) as error:
        yield f"its plan cannot be read ({type(error).__name__}: {error})"
        return
    wanted = {(slot.cell, slot.seed, slot.prompt, slot.round, slot.context) for slot in slots}
    held = Counter(_slot(one) for one in windows.values() if not one.get("warm_up"))
    listed = {_slot(one) for one in run["missing"] if isinstance(one, dict)}
    skipped = {cell for cell, state in run["cells"].items() if state["skipped"]}
    for slot in sorted(wanted - held.keys() - listed, key=str):
        if slot[0] not in skipped:
            yield f"{_told(slot)} is neither there nor listed as missing"
    yield from (f"{_told(slot)} is listed as missing, and it is there" for slot in sorted(listed & set(held), key=str))
    yield from (f"{_told(slot)} is there {count} times" for slot, count in held.items() if count > 1)
    yield from (f"{_told(slot)} is none of the plan's" for slot in sorted(held.keys() - wanted, key=str))


def _slot(window: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*(window.get(key) for key in ("cell", "seed", "prompt", "round")), window.get("context_asked"))


def _told(slot: tuple[Any, ...]) -> str:
    cell, seed, prompt, number, context = slot
    return f"window {cell}, seed {seed}, prompt {prompt}, round {number}" + (f", context {context}" if context else "")


def _equal(left: Any, right: Any) -> bool:
    """Rates computed and stored: numbers up to rounding, lists entry by entry."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    if left is None or right is None or isinstance(left, list) or isinstance(right, list):
        return left is right
    return abs(left - right) <= ROUNDING * max(abs(left), abs(right))
