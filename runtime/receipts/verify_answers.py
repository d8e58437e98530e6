"""The answers of an eval run, held against themselves and against what the run promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mtrun.runtime.acceptance.counts import Counts
from mtrun.runtime.measure.digest import ids_digest
from mtrun.runtime.measure.store import read_lines
from mtrun.runtime.receipts.opened import ANSWERS
from mtrun.runtime.receipts.schema import TASK_ANSWER, TEXT_ANSWER, problems

KINDS = ("tasks", "text")


def answers_problems(folder: Path, run: Mapping[str, Any]) -> tuple[int, list[str]]:
    """How many answers a run has, and what is wrong with them, one line each."""
    lines = [f"run.json: {line}" for line in _one_cell(run)]
    if run["kind"] not in KINDS:
        return 0, [*lines, f"run.json: kind is {run['kind']}, not {' or '.join(KINDS)}"]
    answers = list(read_lines(folder / ANSWERS))
    lines += [f"{ANSWERS}: {line}" for line in _unreadable(folder / ANSWERS, len(answers))]
    unit, shape = ("task", TASK_ANSWER) if run["kind"] == "tasks" else ("prompt", TEXT_ANSWER)
    sound = []
    for number, answer in enumerate(answers, 1):
        wrong = problems(answer, shape)
        sound += [] if wrong else [answer]
        lines += [f"{ANSWERS}, answer {number}: {line}" for line in wrong or _answer(answer)]
    return len(answers), lines + [f"{ANSWERS}: {line}" for line in _promised(run, unit, sound)]


def _one_cell(run: Mapping[str, Any]) -> Iterator[str]:
    if len(run["cells"]) != 1:
        yield f"it has {len(run['cells'])} cells, and an eval run has one"
    if run.get("set_sha256") != run["plan"].get("set_sha256", run.get("set_sha256")):
        yield "set_sha256 is not that of its plan"


def _unreadable(path: Path, read: int) -> Iterator[str]:
    """A line cut short by a kill is measured again; it still says that the file is not as it was written."""
    written = sum(bool(line.strip()) for line in path.read_bytes().splitlines()) if path.is_file() else 0
    if written != read:
        yield f"{written - read} of {written} lines cannot be read"


def _answer(answer: Mapping[str, Any]) -> Iterator[str]:
    if ids_digest(answer["ids"]) != answer["digest"]:
        yield "digest is not that of its token ids"
    if answer["output_tokens"] != len(answer["ids"]):
        yield f"output_tokens is {answer['output_tokens']}, and it holds {len(answer['ids'])} tokens"
    counts = Counts.of_json(answer["counts"])
    yield from counts.identities()
    if counts.generated != len(answer["ids"]):
        yield f"counts.generated is {counts.generated}, and it holds {len(answer['ids'])} tokens"
    if answer.get("truncated") is True and answer.get("ok") is True:
        yield "it was truncated and counts as right"


def _promised(run: Mapping[str, Any], unit: str, answers: list[Mapping[str, Any]]) -> Iterator[str]:
    held = Counter((answer[unit], answer["seed"]) for answer in answers)
    listed = {(one.get(unit), one.get("seed")) for one in run["missing"] if isinstance(one, dict)}
    seeds, units = run["plan"].get("seeds"), run["plan"].get(f"{unit}s")
    yield from (f"{unit} {key}, seed {seed} is there {n} times" for (key, seed), n in held.items() if n > 1)
    yield from (
        f"{unit} {key}, seed {seed} is listed as missing, and it is there"
        for key, seed in sorted(listed & set(held), key=str)
    )
    if not isinstance(seeds, list) or not isinstance(units, int | list):
        yield f"its plan does not say which seeds and {unit}s there have to be"
        return
    strange = sorted({seed for _, seed in held} - set(seeds))
    if strange:
        yield f"seeds {', '.join(map(str, strange))} are none of the plan's"
    wanted = (len(units) if isinstance(units, list) else units) * len(seeds)
    if wanted != len(held) + len(listed - set(held)):
        yield f"the plan promises {wanted} answers: {len(held)} are there and {len(listed)} are listed as missing"
