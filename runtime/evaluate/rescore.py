"""A run scored again by its task set, offline."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import ConfigurationError, MtrunError
from mtrun.runtime.evaluate.folder import ANSWERS, KIND, SCHEMA, SUMMARY, read_answers
from mtrun.runtime.evaluate.score import rescored, summarize
from mtrun.runtime.evaluate.sets.catalogue import open_set
from mtrun.runtime.measure.store import RUN, read_json, write_json, write_text


@dataclass(frozen=True)
class Rescored:
    """What scoring again came to."""

    summary: dict[str, Any]
    changed: int  # verdicts
    unknown: int  # answers to tasks that the set does not hold; left out of the summary, kept in the file


def rescore(path: Path, set_name: str | None = None, allow_different: bool = False) -> Rescored:
    """Judges every kept answer and rewrites summary.json, and the answers whose verdict changed.

    Raises ConfigurationError for a folder that holds no run of tasks, MtrunError where the set is another one than was
    asked and `allow_different` is not given.
    """
    run = read_json(path / RUN, SCHEMA)
    if run["kind"] != KIND:
        raise ConfigurationError(f"{path} holds a run of {run['kind']}, not of tasks: give another folder.")
    asked = open_set(set_name or run["set"])
    if asked.sha256 != run["set_sha256"] and not allow_different:
        raise MtrunError(
            f"the set {asked.name} is not the one that {path} was asked (its digest is {asked.sha256[:12]}, not "
            f"{run['set_sha256'][:12]}): add --allow-different to judge by it all the same."
        )
    before = read_answers(path)
    after = {(line["task"], line["seed"]): line for line in rescored(list(before.values()), asked)}
    changed = sum(line["ok"] != before[key]["ok"] for key, line in after.items())
    if any(line != before[key] for key, line in after.items()):
        lines = (json.dumps(line, allow_nan=False, ensure_ascii=False) for line in (before | after).values())
        write_text(path / ANSWERS, "".join(f"{line}\n" for line in lines))
    summary = summarize(run, list(after.values()), asked.sha256)
    write_json(path / SUMMARY, summary)
    return Rescored(summary, changed, len(before) - len(after))
