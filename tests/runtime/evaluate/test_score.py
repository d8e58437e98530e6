"""Measures of answers: strict and completed, sums before rates, intervals over seeds, tables."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mtrun.runtime.acceptance.counts import Counts
from mtrun.runtime.errors import ConfigurationError, MtrunError
from mtrun.runtime.evaluate.contract import TRUNCATED
from mtrun.runtime.evaluate.folder import ANSWERS, SUMMARY, Plan, RunFolder, read_answers
from mtrun.runtime.evaluate.rescore import rescore
from mtrun.runtime.evaluate.score import DEFINITIONS, measures, rescored, summarize
from mtrun.runtime.evaluate.sets.catalogue import open_set
from mtrun.runtime.evaluate.table import table

LAW = {"law": "cascade", "rule": "tokenv3", "parameters": {"alpha": 0.95}, "distribution_exact": False}


def line(seed: int = 0, task: str = "a", family: str = "f", **changes: Any) -> dict[str, Any]:
    known = {
        "task": task,
        "family": family,
        "seed": seed,
        "text": "",
        "output_tokens": 11,
        "truncated": False,
        "counts": asdict(Counts()),
        "law": LAW,
        "prefill_seconds": 0.5,
        "decode_seconds": 2.0,
        "wall_seconds": 2.5,
        "ok": True,
    }
    return known | changes


def run(tasks: int, *seeds: int) -> dict[str, Any]:
    plan = {"tasks": tasks, "seeds": list(seeds)}
    cells = {"tokenv3-0.95": {"label": "cascade rule=tokenv3"}}
    return {"kind": "tasks", "set": "own", "set_sha256": "0", "plan": plan, "cells": cells}


def test_strict_counts_a_truncated_answer_as_wrong_and_completed_leaves_it_out() -> None:
    lines = [line(ok=True)] * 5 + [line(ok=False)] * 3 + [line(ok=False, truncated=True, output_tokens=31)] * 2
    found = measures(lines)
    assert found["pass_at_1"] == 5 / 10
    assert found["completed_task"] == 5 / 8
    assert found["truncation_rate"] == 2 / 10
    assert (found["output_tokens_mean"], found["output_tokens_max"]) == (15, 31)


def test_a_truncated_answer_is_never_right_even_where_a_line_says_so() -> None:
    assert measures([line(ok=True, truncated=True), line()])["pass_at_1"] == 0.5
    assert measures([line(ok=True, truncated=True)])["completed_task"] is None


def test_rates_come_from_summed_counters_and_speed_from_summed_times() -> None:
    few, many = Counts(), Counts()
    few.record(1, 1, [False], [0.9])
    for _ in range(9):
        many.record(3, 2, [True, False, True], [0.1, 0.2, 0.3])
    found = measures([line(counts=asdict(few)), line(counts=asdict(many), output_tokens=31, decode_seconds=8.0)])
    assert found["draft_acceptance"] == 19 / 28
    assert found["kept_draft_rate"] == 19 / 28
    assert found["deferral_rate"] == 18 / 28
    assert found["tokens_per_cycle"] == 1 + 19 / 10
    assert found["mean_divergence"] == pytest.approx((0.9 + 9 * 0.6) / 28)
    assert found["tok_s"] == (10 + 30) / 10.0
    assert found["wall_seconds"] == 5.0


def test_no_answer_has_no_rate() -> None:
    found = measures([])
    assert {name for name in DEFINITIONS if found[name] not in (None, 0)} == set()
    assert found["pass_at_1"] is None


def test_a_summary_splits_by_family_and_seed_and_counts_what_is_missing() -> None:
    lines = [line(0, "a", "f"), line(0, "b", "g", ok=False), line(1, "a", "f", ok=False)]
    found = summarize(run(2, 0, 1, 2), lines, "0")
    assert found["missing"] == 3
    assert {name: one["pass_at_1"] for name, one in found["by_family"].items()} == {"f": 0.5, "g": 0.0}
    assert {seed: one["answers"] for seed, one in found["by_seed"].items()} == {"0": 2, "1": 1}
    assert found["total"]["intervals"]["pass_at_1"] is None  # one seed alone has all of its answers
    assert "3 answers missing" in table(found)


def test_intervals_are_students_over_the_means_of_seeds() -> None:
    right = {0: 4, 1: 3, 2: 2}
    lines = [line(seed, str(i), ok=i < count) for seed, count in right.items() for i in range(4)]
    interval = summarize(run(4, 0, 1, 2), lines, "0")["total"]["intervals"]["pass_at_1"]
    assert (interval["value"], interval["n"]) == (0.75, 3)
    half = 4.302652729696142 * 0.25 / 3**0.5  # t at .975 with 2 degrees of freedom, standard deviation .25
    assert interval["low"] == pytest.approx(0.75 - half)
    assert interval["high"] == pytest.approx(0.75 + half)


def test_without_scipy_the_scores_stand_and_the_table_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    found = summarize(run(1, 0, 1), [line(0), line(1, ok=False)], "0")
    assert found["total"]["intervals"]["pass_at_1"] == {"value": 0.5, "low": None, "high": None, "n": 2}
    assert "pip install 'mtrun[bench]'" in table(found)


def test_a_table_has_a_row_for_all_for_each_family_and_for_each_seed() -> None:
    lines = [line(seed, task, task) for seed in (3, 4) for task in ("addition", "lists")]
    text = table(summarize(run(2, 3, 4), lines, "0"))
    starts = [one.split("  ")[0] for one in text.split("\n")]
    assert starts[2:7] == ["all", "addition", "lists", "seed 3", "seed 4"]
    assert "95 % Student t over 2 seeds" in text
    assert "n/a" in text  # nothing was drafted
    assert max(map(len, text.split("\n"))) <= 130


def test_scoring_again_judges_the_kept_text() -> None:
    asked = open_set("nano")
    task = asked.tasks[0]
    right = line(0, task.id, task.family, text=f"It is {task.expect}.", ok=False, why="?")
    lines = [right, right | {"truncated": True}, line(0, "unknown"), right | {"text": "no idea"}]
    found = rescored(lines, asked)
    assert [one["ok"] for one in found] == [True, False, False]
    assert found[1]["why"] == TRUNCATED


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A run of two tasks and two seeds, one answer truncated, one missing; nobody has scored it yet."""
    (tmp_path / "own.jsonl").write_text(own(["cat"], ["dog"]))
    asked = open_set(str(tmp_path / "own.jsonl"))
    folder = RunFolder.start(tmp_path / "run", Plan.of(asked, (0, 1), 8, None), resume=False)
    folder.begin("exact", {"label": "exact", "overrides": [], "setting": "0" * 16}, ["mtrun"], {})
    for seed, task, text, truncated in (
        (0, "t0", "A cat.", False),
        (0, "t1", "A dog", True),
        (1, "t0", "A cow.", False),
    ):
        folder.keep(line(seed, task, text=text, truncated=truncated, ok=False, why="?"))
    return folder.path


def own(*answers: list[str]) -> str:
    return "\n".join(json.dumps({"id": f"t{i}", "prompt": "Who?", "answers": one}) for i, one in enumerate(answers))


def verdicts(path: Path) -> dict[tuple[str, int], bool]:
    return {key: one["ok"] for key, one in read_answers(path).items()}


def test_a_run_is_scored_again_from_its_folder_alone(kept: Path) -> None:
    before = [one["text"] for one in read_answers(kept).values()]
    done = rescore(kept)
    assert (done.changed, done.unknown) == (1, 0)
    assert verdicts(kept) == {("t0", 0): True, ("t1", 0): False, ("t0", 1): False}
    assert [one["text"] for one in read_answers(kept).values()] == before
    total = done.summary["total"]
    assert (total["pass_at_1"], total["completed_task"], done.summary["missing"]) == (1 / 3, 1 / 2, 1)
    assert json.loads((kept / SUMMARY).read_text()) == done.summary
    written = (kept / ANSWERS).stat().st_mtime_ns
    assert rescore(kept).changed == 0
    assert (kept / ANSWERS).stat().st_mtime_ns == written  # answers are written again only where a verdict changed


def test_another_set_is_refused_until_it_is_allowed(kept: Path) -> None:
    (kept.parent / "own.jsonl").write_text(own(["cow"]))
    with pytest.raises(MtrunError, match="add --allow-different") as refused:
        rescore(kept)
    assert refused.value.exit_code == 1
    assert not (kept / SUMMARY).exists()
    done = rescore(kept, allow_different=True)
    assert (done.changed, done.unknown) == (1, 1)
    assert verdicts(kept) == {("t0", 0): False, ("t1", 0): False, ("t0", 1): True}
    assert done.summary["scored_with"] == open_set(str(kept.parent / "own.jsonl")).sha256 != done.summary["set_sha256"]


def test_a_set_that_moved_is_named(kept: Path) -> None:
    (kept.parent / "own.jsonl").rename(kept.parent / "moved.jsonl")
    with pytest.raises(ConfigurationError, match="no task set and no file"):
        rescore(kept)
    assert rescore(kept, str(kept.parent / "moved.jsonl")).changed == 1


def test_a_folder_without_a_run_of_tasks_is_refused(kept: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        rescore(tmp_path / "nothing")
    run = json.loads((kept / "run.json").read_text())
    (kept / "run.json").write_text(json.dumps(run | {"kind": "text"}))
    with pytest.raises(ConfigurationError, match="a run of text, not of tasks"):
        rescore(kept)
