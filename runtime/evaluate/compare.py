"""Two runs of the same plan compared pair by pair, new - old, after a check that only the law tells them apart.

{schema, kind, runs[{folder, cell, label, answers, missing}], different[lines], pairs, only_old, only_new, seeds,
method, ...}. Tasks: total and by_family {name: ...}, each {tasks, pairs, old, new, difference{value, low, high, n},
half_width, detectable, mcnemar{only_old, only_new, exact, mid}, sign_flip{p, method}}. Text: figures {name: {old, new,
difference}}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import ConfigurationError, MtrunError
from mtrun.runtime.evaluate.folder import SCHEMA, SUMMARY, first_lines
from mtrun.runtime.evaluate.mcnemar import (
    METHOD,
    POWER,
    detectable,
    half_width,
    mcnemar,
    paired_interval,
    sign_flip,
    task_differences,
)
from mtrun.runtime.evaluate.text_measures import DEFINITIONS, figure
from mtrun.runtime.evaluate.unlike import leaves, setting_differences
from mtrun.runtime.measure.stats import LEVEL, Values, paired_difference, seed_means
from mtrun.runtime.measure.store import RUN, read_json, read_setting

COMPARISON = "mtrun.eval.compare/1"
_ITEM = {"tasks": "task", "text": "prompt"}  # what a line of each kind is an answer to
OVER_SEEDS = "Student t over the seeds' mean differences"

Key = tuple[Any, int]  # task or prompt, seed


@dataclass(frozen=True)
class Run:
    """A run as its folder holds it."""

    folder: Path
    data: Mapping[str, Any]  # run.json
    cell: str
    setting: Mapping[str, Any]
    lines: Mapping[Key, Mapping[str, Any]]

    @property
    def kind(self) -> str:
        return self.data["kind"]

    @property
    def label(self) -> str:
        return self.data["cells"][self.cell]["label"]


class UnlikeRunsError(MtrunError):
    """The runs differ in more than the law. `lines` says in what, each `key: old -> new`."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("the runs differ in more than their law: add --allow-different to compare them all the same")
        self.lines = lines


def read_run(folder: Path) -> Run:
    """Raises ConfigurationError for a folder without a whole run of tasks or text."""
    data = read_json(folder / RUN, SCHEMA)
    if data["kind"] not in _ITEM or len(data["cells"]) != 1:
        raise ConfigurationError(f"{folder} holds no run of `eval tasks` or `eval text`: give such a folder.")
    ((cell, facts),) = data["cells"].items()
    lines = first_lines(folder, _ITEM[data["kind"]])
    if facts["skipped"] or not lines:
        raise ConfigurationError(f"{folder} holds no answers ({facts['skipped'] or 'none was kept'}): run it first.")
    return Run(folder, data, cell, read_setting(folder, facts["setting"]), lines)


def need_scipy() -> None:
    """Raises ConfigurationError where intervals cannot be computed."""
    if find_spec("scipy") is None:
        raise ConfigurationError("a comparison needs scipy: pip install 'mtrun[bench]'")


def compare(old: Run, new: Run, allow_different: bool = False) -> dict[str, Any]:
    """The comparison as JSON types. Raises UnlikeRunsError, and MtrunError where there is nothing to pair."""
    if old.kind != new.kind:
        raise MtrunError(
            f"{old.folder} is a run of {old.kind} and {new.folder} one of {new.kind}: compare two of a kind"
        )
    different = differences(old, new)
    if different and not allow_different:
        raise UnlikeRunsError(different)
    keys = [key for key in old.lines if key in new.lines]
    if not keys:
        raise MtrunError(
            f"{old.folder} and {new.folder} have no answer to the same {_ITEM[old.kind]} and seed in common"
        )
    return {
        "schema": COMPARISON,
        "kind": old.kind,
        "runs": [_described(run) for run in (old, new)],
        "different": different,
        "pairs": len(keys),
        "only_old": len(old.lines) - len(keys),
        "only_new": len(new.lines) - len(keys),
        "seeds": len({seed for _, seed in keys}),
        **(_tasks(old, new, keys) if old.kind == "tasks" else _text(old, new, keys)),
    }


def _described(run: Run) -> dict[str, Any]:
    facts = {"folder": str(run.folder), "cell": run.cell, "label": run.label}
    return {**facts, "answers": len(run.lines), "missing": len(run.data["missing"])}


def differences(old: Run, new: Run) -> list[str]:
    """All that tells the runs apart beside the law, one line each."""
    found = leaves(old.data["set_sha256"], new.data["set_sha256"], "set")
    found += leaves(old.data["plan"], new.data["plan"], "plan")
    found += leaves(_judge(old), _judge(new), "judged by")
    found += setting_differences(old.setting, new.setting)
    common = [key for key in old.lines if key in new.lines]
    other = sum(old.lines[key]["prompt_digest"] != new.lines[key]["prompt_digest"] for key in common)
    if other:
        found.append(f"prompt tokens: {other} of {len(common)} pairs were asked in other tokens")
    return found


def _judge(run: Run) -> str | None:
    """The digest of the set whose checks judged the answers, where a summary says it."""
    path = run.folder / SUMMARY
    return read_json(path).get("scored_with") if path.is_file() else run.data["set_sha256"]


def _tasks(old: Run, new: Run, keys: list[Key]) -> dict[str, Any]:
    families: dict[str, list[Key]] = {}
    for key in keys:
        families.setdefault(old.lines[key]["family"], []).append(key)
    return {
        "total": _group(old, new, keys),
        "by_family": {name: _group(old, new, some) for name, some in sorted(families.items())},
        "method": {"interval": METHOD, "level": LEVEL, "power": POWER},
    }


def _group(old: Run, new: Run, keys: list[Key]) -> dict[str, Any]:
    """The figures of some paired answers."""
    by_task: dict[Any, list[Key]] = {}
    for key in keys:
        by_task.setdefault(key[0], []).append(key)
    right = [[[_strict(run.lines[key]) for key in some] for some in by_task.values()] for run in (old, new)]
    paired = [(_strict(old.lines[key]), _strict(new.lines[key])) for key in keys]
    each = task_differences(*right)
    interval = paired_interval(each)
    return {
        "tasks": len(by_task),
        "pairs": len(keys),
        "old": sum(was for was, _ in paired) / len(paired),
        "new": sum(now for _, now in paired) / len(paired),
        "difference": asdict(interval),
        "half_width": half_width(interval),
        "detectable": detectable(each),
        "mcnemar": asdict(mcnemar(paired.count((True, False)), paired.count((False, True)))),
        "sign_flip": asdict(sign_flip(each)),
    }


def _strict(line: Mapping[str, Any]) -> bool:
    """A truncated answer is wrong."""
    return bool(line["ok"]) and not line["truncated"]


def _text(old: Run, new: Run, keys: list[Key]) -> dict[str, Any]:
    sides = [[run.lines[key] for key in keys] for run in (old, new)]
    found = {name: _figure(*(figure(lines, name) for lines in sides)) for name in DEFINITIONS}
    return {"figures": found, "method": {"interval": OVER_SEEDS, "level": LEVEL}}


def _figure(old: Values, new: Values) -> dict[str, Any]:
    """Means of each side over its seeds, and the paired difference; None where a side has none of the figure."""
    gap = paired_difference(new, old)
    return {"old": _mean(old), "new": _mean(new), "difference": gap and asdict(gap)}


def _mean(values: Values) -> float | None:
    means: Iterable[float] = seed_means(values).values()
    found = list(means)
    return sum(found) / len(found) if found else None


def gaps(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """What the summary of a text run keeps of its comparison with another: this run minus that one."""
    return {
        "run": comparison["runs"][0],
        "different": comparison["different"],
        "pairs": comparison["pairs"],
        "gaps": {name: found["difference"] for name, found in comparison["figures"].items()},
    }
