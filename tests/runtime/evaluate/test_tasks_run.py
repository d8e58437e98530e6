"""Runs of tasks on small packs: what is kept, what goes on, what is refused, what is paired."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtrun.runtime import compose
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.evaluate.answering import prompt_ids, request_seed
from mtrun.runtime.evaluate.cells import cell_name
from mtrun.runtime.evaluate.contract import TaskSet
from mtrun.runtime.evaluate.folder import ANSWERS, Plan, RunFolder, decisive, read_answers
from mtrun.runtime.evaluate.run import decode, write_summary
from mtrun.runtime.evaluate.sets.catalogue import open_set
from mtrun.runtime.generator import MtpGenerator
from mtrun.runtime.measure.store import RUN, read_json, read_setting
from mtrun.runtime.preparation import Preparation, prepare
from support.tiny_pack import write_tiny_pack

EXACT, CASCADE = ("profile=exact-stock",), ("profile=cascade-tokenv3", "lanes=none", "cascade.alpha=0.5")
SEEDS = (0, 3)
TOKENS = 24


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_pack(tmp_path_factory.mktemp("pack"))


@pytest.fixture
def on_thread() -> Callable[..., Any]:
    """Each call on a thread of its own: MLX arrays belong to a thread, and closing a generator ends its streams."""

    def run(work: Callable[..., Any], *given: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work, *given).result()

    return run


@pytest.fixture
def asked(tmp_path: Path) -> TaskSet:
    path = tmp_path / "own.jsonl"
    lines = [{"id": f"t{i}", "prompt": f"{'One two ' * i}three?", "answers": ["the", "cat"]} for i in range(4)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return open_set(str(path))


def prepared(pack: Path | str, *words: str) -> Preparation:
    return prepare(compose([f"pack={pack}", *words]))


def go(
    run: Preparation, asked: TaskSet, folder: RunFolder, stop: Callable[[], bool] = lambda: False
) -> dict[str, Any] | None:
    """One session; the summary, or None where `stop` ended it."""
    generator = MtpGenerator(run)
    generator.load()
    try:
        prompts = prompt_ids(run, asked.tasks)
        cell = cell_name(run.composed)
        if not decode(generator, asked, prompts, folder, cell, ["mtrun"], lambda share, note: None, stop):
            return None
        return write_summary(folder, asked.sha256)
    finally:
        generator.close()


def plan_of(asked: TaskSet, seeds: tuple[int, ...] = SEEDS, **changes: Any) -> Plan:
    return Plan.of(asked, seeds, **{"max_tokens": TOKENS, "limit": None, **changes})


def digests(path: Path) -> dict[tuple[str, int], str]:
    return {key: line["digest"] for key, line in read_answers(path).items()}


def after(count: int) -> Callable[[], bool]:
    """Asked more than `count` times, it says stop."""
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > count

    return stop


def test_a_run_keeps_every_answer_with_what_the_contract_names(
    pack: Path, asked: TaskSet, tmp_path: Path, on_thread: Callable[..., Any]
) -> None:
    folder = RunFolder.start(tmp_path / "run", plan_of(asked), resume=False)
    summary = on_thread(go, prepared(pack, *CASCADE), asked, folder)
    run = read_json(folder.path / RUN, "mtrun.eval.run/1")
    assert (run["kind"], run["set_sha256"], run["missing"]) == ("tasks", asked.sha256, [])
    assert run["sessions"][0]["ended"] >= run["sessions"][0]["started"]
    (cell,) = run["cells"]
    setting = read_setting(folder.path, run["cells"][cell]["setting"])
    assert cell == "tokenv3-0.5-lanes-none"
    assert (setting["law"]["rule"], setting["config"]["cascade"]["alpha"]) == ("tokenv3", 0.5)
    lines = list(read_answers(folder.path).values())
    assert [(line["task"], line["seed"]) for line in lines] == folder.plan.keys(asked)
    for line in lines:
        assert line["truncated"] == (line["reason"] == "length")
        assert line["output_tokens"] == line["counts"]["generated"] == len(line["ids"]) <= TOKENS
        assert line["law"]["rule"] == "tokenv3"
        assert not (line["truncated"] and line["ok"])
        assert line["why"].endswith(".")
    assert summary["total"]["answers"] == 8
    assert summary == json.loads((folder.path / "summary.json").read_text())


def test_where_the_beginning_is_all_that_is_asked_for_no_answer_is_truncated(
    pack: Path, asked: TaskSet, tmp_path: Path, on_thread: Callable[..., Any]
) -> None:
    excerpts = replace(asked, excerpt=True)
    folder = RunFolder.start(tmp_path / "run", plan_of(excerpts), resume=False)
    summary = on_thread(go, prepared(pack, *CASCADE), excerpts, folder)
    lines = read_answers(folder.path).values()
    assert "length" in {line["reason"] for line in lines}
    assert not any(line["truncated"] for line in lines)
    assert summary["total"]["truncation_rate"] == 0
    assert open_set("facts").excerpt
    assert not open_set("nano").excerpt


def test_laws_are_paired_by_requests_of_one_seed(
    pack: Path, asked: TaskSet, tmp_path: Path, on_thread: Callable[..., Any]
) -> None:
    """One seed and task is one request under every law; a smaller plan gives the same answers where it has them."""
    folders = {name: tmp_path / name for name in ("exact", "cascade", "again", "fewer")}
    whole, fewer = plan_of(asked), plan_of(asked, seeds=(3,), limit=2)
    for name, words, plan in (
        ("exact", EXACT, whole),
        ("cascade", CASCADE, whole),
        ("again", CASCADE, whole),
        ("fewer", CASCADE, fewer),
    ):
        on_thread(go, prepared(pack, *words), asked, RunFolder.start(folders[name], plan, resume=False))
    exact, cascade = read_answers(folders["exact"]), read_answers(folders["cascade"])
    assert {key: line["request_seed"] for key, line in exact.items()} == {
        key: line["request_seed"] for key, line in cascade.items()
    }
    assert len({line["request_seed"] for line in exact.values()}) == len(exact)
    assert digests(folders["cascade"]) == digests(folders["again"]) != digests(folders["exact"])
    some = digests(folders["fewer"])
    assert set(some) == {("t0", 3), ("t1", 3)}
    assert some.items() <= digests(folders["cascade"]).items()


def test_the_seed_of_a_request_is_a_function_of_seed_and_place() -> None:
    seeds = [request_seed(seed, index) for seed in range(5) for index in range(164)]
    assert len(set(seeds)) == len(seeds)
    assert request_seed(2, 7) == request_seed(2, 7) != request_seed(7, 2)


def test_what_a_kill_left_is_completed_to_the_same_answers(
    pack: Path, asked: TaskSet, tmp_path: Path, on_thread: Callable[..., Any]
) -> None:
    whole = RunFolder.start(tmp_path / "whole", plan_of(asked), resume=False)
    on_thread(go, prepared(pack, *CASCADE), asked, whole)
    path = whole.path / ANSWERS
    lines = path.read_text().splitlines(keepends=True)
    expected = digests(whole.path)
    path.write_text("".join(lines[:3]) + lines[3][:40])  # the fourth line was being written
    resumed = RunFolder.start(whole.path, plan_of(asked), resume=True)
    assert len(resumed.missing(asked)) == 5
    summary = on_thread(go, prepared(pack, *CASCADE), asked, resumed)
    assert digests(whole.path) == expected
    assert summary["missing"] == 0
    run = read_json(whole.path / RUN)
    assert (len(run["sessions"]), run["missing"]) == (2, [])


def test_a_request_to_stop_keeps_whole_answers_alone(
    pack: Path, asked: TaskSet, tmp_path: Path, on_thread: Callable[..., Any]
) -> None:
    folder = RunFolder.start(tmp_path / "run", plan_of(asked), resume=False)
    assert on_thread(go, prepared(pack, *CASCADE), asked, folder, after(60)) is None
    kept = read_answers(folder.path)
    assert 0 < len(kept) < 8
    assert {line["reason"] for line in kept.values()} <= {"stop", "length"}
    assert len(read_json(folder.path / RUN)["missing"]) == 8 - len(kept)


def test_a_folder_is_gone_on_with_only_when_asked_and_only_by_its_own_plan(
    pack: Path, asked: TaskSet, tmp_path: Path, on_thread: Callable[..., Any]
) -> None:
    folder = RunFolder.start(tmp_path / "run", plan_of(asked, limit=1), resume=False)
    on_thread(go, prepared(pack, *EXACT), asked, folder)
    with pytest.raises(ConfigurationError, match="add --resume"):
        RunFolder.start(folder.path, folder.plan, resume=False)
    for other, told in (
        (plan_of(asked), "tasks 1, not 4"),
        (plan_of(asked, limit=1, max_tokens=25), "max_tokens 24, not 25"),
        (plan_of(asked, limit=1, seeds=(0,)), "seeds"),
        (plan_of(open_set("nano"), limit=1), "set"),
    ):
        with pytest.raises(ConfigurationError, match=f"another plan.*{told}"):
            RunFolder.start(folder.path, other, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="is a file"):
        RunFolder.start(tmp_path / "file", folder.plan, resume=True)
    assert RunFolder.start(tmp_path / "new", folder.plan, resume=True).missing(asked) == folder.plan.keys(asked)


def test_another_setting_is_refused_with_what_differs(
    pack: Path, asked: TaskSet, tmp_path: Path, on_thread: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(asked, limit=1)
    on_thread(go, prepared(pack, *CASCADE), asked, RunFolder.start(tmp_path / "run", plan, resume=False))
    folder = RunFolder.start(tmp_path / "run", plan, resume=True)
    folder.check(decisive(prepared(pack, *CASCADE)))
    with pytest.raises(ConfigurationError, match=r"another configuration \(cascade.alpha 0.5, not 0.75\)"):
        folder.check(decisive(prepared(pack, "profile=cascade-tokenv3", "lanes=none", "cascade.alpha=0.75")))
    (cell,) = folder.run["cells"].values()  # type: ignore[index]
    audit = read_setting(folder.path, cell["setting"])["audit"]["lanes"]
    states = {one["lane"]: one["state"] != "declined" for one in audit}
    folder.check({"lanes": states})
    lane = next(iter(states))
    with pytest.raises(ConfigurationError, match=rf"another lanes \({lane}"):
        folder.check({"lanes": states | {lane: not states[lane]}})
    write_tiny_pack(tmp_path / "other", seed=1)
    found = decisive(prepared(tmp_path / "other", *CASCADE))
    with pytest.raises(ConfigurationError, match="another pack"):
        folder.check({"pack": found["pack"]})
    monkeypatch.setattr("mtrun.runtime.measure.code.source_digest", lambda: "0")
    with pytest.raises(ConfigurationError, match="another code"):
        folder.check(decisive(prepared(pack, *CASCADE)))


def test_prompts_that_cannot_be_asked_are_refused_before_a_weight_is_read(tmp_path: Path, asked: TaskSet) -> None:
    small = write_tiny_pack(tmp_path / "small", context=24)
    with pytest.raises(ConfigurationError, match=r"prompt of task t. has .* tokens and the context limit is 24"):
        prompt_ids(prepared(small), asked.tasks)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["profile=turbo", "pack=nano"], "exact"),
        (["profile=exact-stock"], "exact-lanes-none"),
        (["profile=cascade-tokenv3", "cascade.alpha=0.75"], "tokenv3-0.75"),
        (["acceptance=cascade", "cascade.rule=opt", "cascade.alpha=0"], "opt-0"),
        (["profile=typical-0.2"], "typical-0.2"),
        (["acceptance=typical-pi", "typical.threshold=0.2"], "typical-pi-0.2"),
        (["draft.depth=0"], "plain"),
        (["profile=turbo", "draft.depth=2", "lanes.frspec=false"], "exact-draft.depth-2-lanes.frspec-false"),
    ],
)
def test_a_cell_is_named_by_its_law(words: list[str], name: str) -> None:
    assert cell_name(compose(words)) == name
