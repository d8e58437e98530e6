"""What answers amount to: measures in total, by family and by seed, with intervals over seeds. Needs no model.

summary.json {schema, kind, set, set_sha256, cell, label, scored_with, tasks, seeds, missing, total, by_family, by_seed,
definitions}; each group holds the measures of `DEFINITIONS`, and total and families `intervals` {measure: {value, low,
high, n}} over the seeds that have all of the group's answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from mtrun.runtime.acceptance.counts import pooled
from mtrun.runtime.acceptance.rates import DEFINITIONS as RATES
from mtrun.runtime.acceptance.rates import rates
from mtrun.runtime.evaluate.contract import TaskSet, judge
from mtrun.runtime.measure.stats import Interval, t_interval

SCHEMA = "mtrun.eval.summary/1"
DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "pass_at_1": "right answers / answers, strict: a truncated answer is wrong",
        "completed_task": "right answers / answers that were not truncated",
        "truncation_rate": "answers that max_tokens or the context limit cut off / answers",
        "output_tokens_mean": "mean tokens of an answer",
        "output_tokens_max": "most tokens of an answer",
        **RATES,
        "prefill_seconds": "sum over answers",
        "decode_seconds": "sum over answers, from the read prompt to the last token",
        "wall_seconds": "sum over answers, scoring left out",
        "tok_s": "sum of (output tokens - 1) / sum of decode seconds",
    }
)
_NO_INTERVAL = ("accepted_by_depth", "output_tokens_max")

Lines = Sequence[Mapping[str, Any]]


def measures(lines: Lines) -> dict[str, Any]:
    """Every measure of `DEFINITIONS` with the number of answers; None where its denominator is zero."""
    n, tokens = len(lines), [line["output_tokens"] for line in lines]
    right = sum(line["ok"] and not line["truncated"] for line in lines)
    truncated = sum(line["truncated"] for line in lines)
    seconds = {f"{name}_seconds": _sum(lines, f"{name}_seconds") for name in ("prefill", "decode", "wall")}
    return {
        "answers": n,
        "right": right,
        "truncated": truncated,
        "pass_at_1": _ratio(right, n),
        "completed_task": _ratio(right, n - truncated),
        "truncation_rate": _ratio(truncated, n),
        "output_tokens_mean": _ratio(sum(tokens), n),
        "output_tokens_max": max(tokens, default=None),
        **rates(pooled(lines)),
        **seconds,
        "tok_s": _ratio(sum(max(count - 1, 0) for count in tokens), seconds["decode_seconds"]),
    }


def summarize(run: Mapping[str, Any], lines: Lines, scored_with: str) -> dict[str, Any]:
    """The summary of the answers of `run` (a run.json); `scored_with` is the digest of the set that judged them."""
    ((cell, facts),) = run["cells"].items()
    plan = run["plan"]
    families = list(dict.fromkeys(line["family"] for line in lines))
    seeds = [seed for seed in plan["seeds"] if any(line["seed"] == seed for line in lines)]
    return {
        "schema": SCHEMA,
        "kind": run["kind"],
        "set": run["set"],
        "set_sha256": run["set_sha256"],
        "scored_with": scored_with,
        "cell": cell,
        "label": facts["label"],
        "tasks": plan["tasks"],
        "seeds": plan["seeds"],
        "missing": plan["tasks"] * len(plan["seeds"]) - len(lines),
        "total": _group(lines, plan["seeds"]),
        "by_family": {one: _group([x for x in lines if x["family"] == one], plan["seeds"]) for one in families},
        "by_seed": {str(seed): measures([line for line in lines if line["seed"] == seed]) for seed in seeds},
        "definitions": dict(DEFINITIONS),
    }


def rescored(lines: Lines, asked: TaskSet) -> list[dict[str, Any]]:
    """The lines with the verdicts of `asked`; those of tasks that it does not hold are left out."""
    tasks = {task.id: task for task in asked.tasks}
    found = [line for line in lines if line["task"] in tasks]
    verdicts = [judge(tasks[line["task"]], line["text"], line["truncated"]) for line in found]
    return [{**line, "ok": one.ok, "why": one.reason} for line, one in zip(found, verdicts, strict=True)]


def _group(lines: Lines, seeds: Sequence[int]) -> dict[str, Any]:
    """Measures with intervals over the seeds that have as many answers as the fullest one."""
    by_seed = [[line for line in lines if line["seed"] == seed] for seed in seeds]
    most = max(map(len, by_seed), default=0)
    each = [measures(some) for some in by_seed if most and len(some) == most]
    intervals = {name: _interval(one[name] for one in each) for name in DEFINITIONS if name not in _NO_INTERVAL}
    return {**measures(lines), "intervals": intervals}


def _interval(values: Iterable[float | None]) -> dict[str, Any] | None:
    """None where a seed has no value, and below two seeds; bounds None where scipy is absent."""
    found = [value for value in values if value is not None]
    if len(found) < 2:
        return None
    try:
        interval = t_interval(found)
    except ImportError:
        interval = Interval(sum(found) / len(found), None, None, len(found))
    return interval and asdict(interval)


def _sum(lines: Lines, name: str) -> float:
    return sum(line[name] for line in lines)


def _ratio(count: float, of: float) -> float | None:
    return count / of if of else None
