"""Comparing two folders: what is paired and computed, what is refused, what the command prints. No model is needed."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mtrun.runtime.cli.main import main
from mtrun.runtime.errors import ConfigurationError, MtrunError
from mtrun.runtime.evaluate.compare import UnlikeRunsError, compare, gaps, read_run
from mtrun.runtime.evaluate.text_measures import DEFINITIONS
from mtrun.runtime.evaluate.unlike import setting_differences
from mtrun.runtime.measure.digest import sha256_of
from mtrun.runtime.measure.store import append_line, keep_setting, write_json

EXACT = {"law": "exact", "rule": None, "parameters": {}, "distribution_exact": True}
OPT = {"law": "cascade", "rule": "opt", "parameters": {"alpha": 0.5}, "distribution_exact": False}


def lane(name: str, code: str | None = None) -> dict[str, Any]:
    """A verdict; a code declines."""
    return {"lane": name, "state": "declined" if code else "armed", "code": code or "proved", "reason": "A reason."}


SETTING: Mapping[str, Any] = {
    "schema": "mtrun.setting/1",
    "config": {
        "acceptance": {"law": "exact"},
        "cascade": {"rule": None, "alpha": None},
        "draft": {"depth": 3, "top_k": None},
        "engine": {"threads": 1, "prefill_chunk": 512},
        "sampler": {"temperature": None},
        "lanes": {"cpu_layer": True},
        "server": {"port": 8383},
        "pack": {"source": "./here"},
    },
    "sampler": {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "seed": None},
    "law": EXACT,
    "pack": {
        "name": "here",
        "trunk_identity": "t" * 8,
        "head": {"ok": True},
        "sha256": {"model.safetensors": "a" * 64},
    },
    "audit": {
        "device": {"system": "Linux", "machine": "x86_64", "device": "cpu", "threads": 1},
        "lanes": [lane("cpu_layer"), lane("judge_kernel"), lane("block_verify"), lane("cost_depth")],
    },
    "code": {"commit": "c", "source_sha256": "1" * 64},
    "versions": {"mlx": "0.32.4", "numpy": "2.4"},
}


def setting(law: Mapping[str, Any] = EXACT, lanes: tuple[dict[str, Any], ...] = (), **changes: Any) -> dict[str, Any]:
    """A setting; `lanes` replace verdicts by name, `changes` are values by dotted name, `__` for a dot."""
    made: dict[str, Any] = copy.deepcopy(dict(SETTING))
    made["law"] = dict(law)
    made["config"]["acceptance"]["law"] = law["law"]
    named = {one["lane"]: one for one in (*made["audit"]["lanes"], *lanes)}
    made["audit"]["lanes"] = list(named.values())
    for name, value in changes.items():
        *path, last = name.split("__")
        place = made
        for key in path:
            place = place[key]
        place[last] = value
    return made


BY_LAW = (lane("block_verify", "law"), lane("cost_depth", "law"))


def write_run(path: Path, kind: str, lines: list[dict[str, Any]], made: Mapping[str, Any], **changes: Any) -> Path:
    """A run's folder, as `eval tasks` and `eval text` leave one."""
    plan = changes.pop("plan", {"seeds": [0, 1]})
    facts = {"label": made["law"]["law"], "overrides": [], "setting": keep_setting(path, made), "skipped": None}
    head = {"schema": "mtrun.eval.run/1", "kind": kind, "set": "facts", "set_sha256": "5" * 64, "plan": plan}
    head |= {"plan_sha256": sha256_of(plan), "command": [], "sessions": [], "cells": {"cell": facts}, "missing": []}
    write_json(path / "run.json", head | changes)
    for line in lines:
        append_line(path / "answers.jsonl", line)
    return path


def answers(right: Mapping[str, str], family: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Lines of tasks; `right` says of each seed whether it was right (1), wrong (0) or right but truncated (t)."""
    return [
        {
            "task": task,
            "family": (family or {}).get(task, "one"),
            "seed": seed,
            "prompt_digest": task,
            "ok": mark in "1t",
            "truncated": mark == "t",
        }
        for task, marks in right.items()
        for seed, mark in enumerate(marks)
    ]


def texts(base: float, seeds: int = 3, tv: float | None = None) -> list[dict[str, Any]]:
    """Lines of text whose figures are `base` plus what prompt and seed make of it; the seeds differ a little."""
    return [
        {"prompt": prompt, "seed": seed, "prompt_digest": str(prompt)}
        | {name: tv if name == "tv" else base + prompt + 10 * seed + base * seed / 100 for name in DEFINITIONS}
        for prompt in range(2)
        for seed in range(seeds)
    ]


RIGHT_OLD = {"a": "11", "b": "10", "c": "00", "d": "1t"}
RIGHT_NEW = {"a": "01", "b": "00", "c": "00", "d": "01"}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    family = {"d": "two"}
    old = write_run(tmp_path / "old", "tasks", answers(RIGHT_OLD, family), setting())
    return old, write_run(tmp_path / "new", "tasks", answers(RIGHT_NEW, family), setting(OPT, BY_LAW))


def test_answers_are_paired_by_task_and_seed_and_truncated_ones_are_wrong(pair: tuple[Path, Path]) -> None:
    """By hand: a loses seed 0, b loses seed 0, d loses seed 0 and gains seed 1, where the old answer was cut off."""
    found = compare(*map(read_run, pair))
    total = found["total"]
    assert (found["pairs"], found["seeds"], total["tasks"]) == (8, 2, 4)
    assert (total["old"], total["new"]) == (4 / 8, 2 / 8)
    assert (total["mcnemar"]["only_old"], total["mcnemar"]["only_new"]) == (3, 1)
    assert total["mcnemar"]["exact"] == 2 * (1 + 4) / 16
    assert total["difference"]["value"] == pytest.approx((-1 / 2 - 1 / 2 + 0 + 0) / 4)
    assert total["difference"]["n"] == 4
    assert total["sign_flip"] == {"p": 0.5, "method": "exact"}
    assert {name: one["tasks"] for name, one in found["by_family"].items()} == {"one": 3, "two": 1}
    assert found["by_family"]["one"]["mcnemar"]["only_new"] == 0


def test_what_one_run_alone_answered_is_left_out_and_counted(tmp_path: Path) -> None:
    old = write_run(tmp_path / "old", "tasks", answers({"a": "11", "b": "0"}), setting())
    new = write_run(tmp_path / "new", "tasks", answers({"a": "1", "b": "01", "c": "1"}), setting())
    found = compare(read_run(old), read_run(new))
    assert (found["pairs"], found["only_old"], found["only_new"]) == (2, 1, 2)
    assert (found["total"]["old"], found["total"]["new"]) == (0.5, 0.5)


def test_texts_are_paired_by_prompt_and_seed_with_the_seed_as_the_unit(tmp_path: Path) -> None:
    """The figures rise by .5 and by .005 a seed: seeds of 10 apart would hide it if they were not paired."""
    old = write_run(tmp_path / "old", "text", texts(1.0), setting())
    new = write_run(tmp_path / "new", "text", texts(1.5, tv=0.5), setting(OPT, BY_LAW))
    found = compare(read_run(old), read_run(new))
    nll = found["figures"]["nll"]["difference"]
    assert (found["pairs"], nll["n"]) == (6, 3)
    assert nll["value"] == pytest.approx(0.505)
    assert 0.48 < nll["low"] < 0.5 < nll["value"] < nll["high"] < 0.53
    assert found["figures"]["tv"] == {"old": None, "new": 0.5, "difference": None}
    assert gaps(found)["gaps"]["nll"] == nll


def unlike(tmp_path: Path, old: Mapping[str, Any], new: Mapping[str, Any], **changes: Any) -> list[str]:
    """What a comparison of two runs of these settings is refused for; none = it is made."""
    lines = answers(RIGHT_OLD)
    first = write_run(tmp_path / "old", "tasks", lines, old)
    second = write_run(tmp_path / "new", "tasks", changes.pop("lines", lines), new, **changes)
    try:
        compare(read_run(first), read_run(second))
    except UnlikeRunsError as error:
        return error.lines
    return []


def test_laws_and_what_follows_from_them_may_differ(tmp_path: Path) -> None:
    assert unlike(tmp_path, setting(), setting(OPT, BY_LAW)) == []
    dark = tuple(lane(name, "nothing_drafted") for name in ("block_verify", "cost_depth"))
    assert setting_differences(setting(lanes=dark, config__draft__depth=0), setting(OPT, BY_LAW)) == []
    native = (lane("cpu_layer", "law"), lane("judge_kernel", "requires"))
    assert setting_differences(setting(), setting(OPT, native)) == [], "judge_kernel requires cpu_layer"
    other = setting(code__commit="d", config__server__port=1, pack__name="there", config__pack__source="./there")
    assert setting_differences(setting(), other) == [], "none of these decides a token"


CHANGES = {
    "pack": ({"pack__sha256": {"model.safetensors": "b" * 64}}, "pack.sha256.model.safetensors: aaaaaaaaaaaa -> bbbb"),
    "head": ({"pack__head": {"ok": False}}, "pack.head.ok: true -> false"),
    "sampler": ({"sampler__top_p": 1.0}, "sampler.top_p: 0.95 -> 1.0"),
    "sources": ({"code__source_sha256": "2" * 64}, "sources: 111111111111 -> 222222222222"),
    "version": ({"versions__mlx": "0.33"}, "versions.mlx: 0.32.4 -> 0.33"),
    "device": ({"audit__device__device": "metal"}, "device.device: cpu -> metal"),
    "threads": ({"config__engine__threads": 2}, "engine.threads: 1 -> 2"),
}


@pytest.mark.parametrize(("changes", "line"), CHANGES.values(), ids=list(CHANGES))
def test_any_other_difference_is_named_old_to_new(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    (told,) = unlike(tmp_path, setting(), setting(OPT, BY_LAW, **changes))
    assert told.startswith(line)


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (lane("cpu_layer", "operator"), "lanes.cpu_layer: armed -> declined (operator: A reason)"),
        (lane("cpu_layer", "proof_failed"), "lanes.cpu_layer: armed -> declined (proof_failed: A reason)"),
        (lane("judge_kernel", "requires"), "lanes.judge_kernel: armed -> declined (requires: A reason)"),
        (lane("kv_q8"), "lanes.kv_q8: unknown -> armed"),
    ],
)
def test_a_lane_that_differs_for_another_reason_than_the_law_is_a_difference(
    verdict: dict[str, Any], line: str, tmp_path: Path
) -> None:
    assert unlike(tmp_path, setting(), setting(OPT, (*BY_LAW, verdict))) == [line]


def test_drafting_counts_where_both_laws_let_it_show(tmp_path: Path) -> None:
    lossy = {depth: setting(OPT, config__draft__depth=depth) for depth in (1, 3)}
    assert unlike(tmp_path, lossy[1], lossy[3]) == ["draft.depth: 1 -> 3"]
    assert setting_differences(setting(config__draft__depth=1), lossy[3]) == []
    assert setting_differences(setting(OPT, config__draft__depth=0), lossy[3]) == [], (
        "nothing drafted is plain decoding"
    )


def test_two_sessions_of_one_run_have_to_agree_in_the_law_too() -> None:
    assert setting_differences(setting(), setting(), same_law=True) == []
    told = setting_differences(setting(), setting(OPT, BY_LAW, config__draft__depth=1), same_law=True)
    assert {line.split(":")[0] for line in told} == {
        "acceptance.law",
        "draft.depth",
        "lanes.block_verify",
        "lanes.cost_depth",
    }


def test_other_questions_are_a_difference(tmp_path: Path) -> None:
    lines = [line | {"prompt_digest": f"{line['prompt_digest']}{line['seed']}"} for line in answers(RIGHT_OLD)]
    plan = {"seeds": [0, 1], "max_tokens": 9}
    write_json(tmp_path / "new" / "summary.json", {"scored_with": "7" * 64})
    assert unlike(tmp_path, setting(), setting(), lines=lines, plan=plan, set_sha256="6" * 64) == [
        "set: 555555555555 -> 666666666666",
        "plan.max_tokens: null -> 9",
        "judged by: 555555555555 -> 777777777777",
        "prompt tokens: 8 of 8 pairs were asked in other tokens",
    ]


def test_a_run_of_tasks_and_one_of_text_are_refused_in_one_sentence(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_run(tmp_path / "text", "text", texts(1.0), setting())
    assert main(["eval", "compare", str(pair[0]), str(text), "--allow-different"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "a run of tasks" in err


def test_folders_that_hold_nothing_to_compare_are_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_run(tmp_path)
    with pytest.raises(ConfigurationError, match="holds no answers"):
        read_run(write_run(tmp_path / "empty", "tasks", [], setting()))
    (kept,) = (pair[0] / "settings").iterdir()
    kept.write_text(kept.read_text().replace("0.95", "0.5"))
    with pytest.raises(ConfigurationError, match="was changed after it was measured"):
        read_run(pair[0])
    other = write_run(tmp_path / "other", "tasks", answers({"z": "11"}), setting())
    with pytest.raises(MtrunError, match="in common"):
        compare(read_run(other), read_run(pair[1]))


def test_the_command_refuses_unlike_runs_and_says_so_when_it_is_told_to_go_on(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_run(tmp_path / "other", "tasks", answers(RIGHT_NEW), setting(sampler__top_k=40, versions__numpy="3"))
    words = ["eval", "compare", str(pair[0]), str(other)]
    lines = ["sampler.top_k: 20 -> 40", "versions.numpy: 2.4 -> 3"]
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[:2] == lines
    assert "--allow-different" in err.splitlines()[2]
    assert main([*words, "--allow-different"]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == ["WARNING: the runs differ in more than their law:", *lines]
    assert main([*words, "--allow-different", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["different"] == lines


def test_the_command_prints_the_test_and_what_n_excludes(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "compare", *map(str, pair)]) == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith(("all", "one", "two"))}
    assert rows["all"][1:5] == ["4", "0.500", "0.250", "-0.250"]
    assert rows["all"][-5:] == ["3", "1", "0.625", "0.375", "0.500"]
    assert "WARNING" not in out
    assert "4 tasks exclude a true difference below" in out.replace("\n", " ")
    assert "80% power" in out.replace("\n", " ")
    text = [write_run(tmp_path / name, "text", texts(base), setting()) for name, base in (("x", 1.0), ("y", 1.5))]
    assert main(["eval", "compare", *map(str, text)]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("nll ")]
    assert row.split()[3] == "+0.5050"
