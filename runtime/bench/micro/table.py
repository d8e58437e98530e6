"""A micro run as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mtrun.runtime.bench.micro.record import microseconds, problem
from mtrun.runtime.bench.table import aligned

HEADERS = ("group", "case", "median us", "min-max us", "n")


def table(data: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> str:
    """Every case, then what has no figures. `data` is the object of run.json."""
    rows = [_row(case) for case in cases if case["n"]]
    lines = aligned([HEADERS, *rows]) if rows else []
    lines += ["", "microseconds a call over n rounds: minimum and maximum only describe, and are not compared"]
    lines += [f"{_what(case)}: {case['group']}, {case['name']}: {problem(case)}" for case in cases if problem(case)]
    lines += [f"missing: {one['cell']}: {one['reason']}" for one in data["missing"]]
    return "\n".join(lines)


def incomplete(data: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a part is missing or a case failed. What this machine has not is no failure."""
    return bool(data["missing"]) or any(case["error"] for case in cases)


def _row(case: Mapping[str, Any]) -> tuple[str, ...]:
    median, digits = microseconds(case["median"])
    low, high = (microseconds(case[key])[0] for key in ("min", "max"))
    band = f"{low:.{digits}f}-{high:.{digits}f}"
    return case["group"], case["name"], f"{median:.{digits}f}", band, str(case["n"])


def _what(case: Mapping[str, Any]) -> str:
    return "failed" if case["error"] else "skipped"
