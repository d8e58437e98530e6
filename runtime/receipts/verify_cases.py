"""The cases of a micro run held against themselves: shapes, figures from rounds, parts that the run promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mtrun.runtime.bench.micro.record import FIGURES, FILE, problem, read_cases, spread
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.receipts.schema import CASE, problems


def cases_problems(folder: Path, run: Mapping[str, Any]) -> tuple[int, list[str]]:
    """How many cases there are, and a line for everything that is wrong with them."""
    try:
        cases = read_cases(folder, run["plan_sha256"])
    except ConfigurationError as error:
        return 0, [f"{FILE}: {error}"]
    lines = [f"{FILE}: cases{line}" for at, case in enumerate(cases) for line in problems(case, CASE, f"[{at}]")]
    if not lines:
        lines = [f"{FILE}: {line}" for case in cases for line in _case(case, run)]
        lines += [f"{FILE}: {line}" for line in _promised(cases, run)]
    return len(cases), lines


def _case(case: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[str]:
    """Its part and session are the run's, its figures follow from its rounds."""
    who = f"{case['group']}, {case['name']}"
    if case["cell"] not in run["cells"]:
        yield f"{who}: its part {case['cell']} is none of the run's"
    if not 0 <= case["session"] < len(run["sessions"]):
        yield f"{who}: session {case['session']} is none of the run's"
    if bool(case["rounds"]) == bool(problem(case)):
        yield f"{who}: it holds {len(case['rounds'])} rounds, and " + (problem(case) or "says no reason")
    found = spread(case["rounds"])
    for name in FIGURES:
        if case[name] != found[name]:
            yield f"{who}: {name} is {case[name]}, and its rounds say {found[name]}"


def _promised(cases: list[dict[str, Any]], run: Mapping[str, Any]) -> Iterator[str]:
    """Every case is there once, every part is there or listed as missing."""
    often = Counter((case["cell"], case["group"], case["name"]) for case in cases)
    yield from (f"{', '.join(names)} is there {count} times" for names, count in often.items() if count > 1)
    there, missing = (
        {case["cell"] for case in cases},
        {one.get("cell") for one in run["missing"] if isinstance(one, dict)},
    )
    for part in run["cells"]:
        if (part in there) == (part in missing):
            yield (
                f"{part} is listed as missing, and it is there"
                if part in there
                else f"{part} is neither there nor listed"
            )
