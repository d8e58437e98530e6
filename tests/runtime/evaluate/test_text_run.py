"""Runs of text on a tiny pack: what is kept, what goes on, what is refused, and what may be compared afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mtrun.runtime import compose
from mtrun.runtime.acceptance.counts import Counts
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.evaluate.cells import cell_name
from mtrun.runtime.evaluate.compare import compare, read_run
from mtrun.runtime.evaluate.text import decode, summarize
from mtrun.runtime.evaluate.text_folder import PACKAGED, PROMPTS, Plan, TextFolder, read_texts
from mtrun.runtime.evaluate.text_measures import DEFINITIONS
from mtrun.runtime.evaluate.unlike import setting_differences
from mtrun.runtime.generator import MtpGenerator
from mtrun.runtime.measure.digest import ids_digest
from mtrun.runtime.measure.store import RUN, read_json
from mtrun.runtime.preparation import Preparation, prepare
from support.tiny_pack import write_tiny_pack

CELLS = {
    "plain": ("draft.depth=0",),
    "exact": (),
    "tokenv3-0.95": ("profile=cascade-tokenv3",),
    "opt-0.75": ("acceptance=cascade", "cascade.rule=opt", "cascade.alpha=0.75"),
}
STAYS = ("plain", "exact", "tokenv3-0.95")  # laws that emit nothing outside the target's filtered support
TOKENS, SEEDS = 24, 2


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_pack(tmp_path_factory.mktemp("pack"), draft_vocab=64, scale=2.0)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("hello there\n\nhow are you today?\n")
    return path


@pytest.fixture(scope="module")
def plan(prompts: Path) -> Plan:
    return Plan.of(prompts, SEEDS, TOKENS)


def prepared(pack: Path, *words: str) -> Preparation:
    return prepare(compose([f"pack={pack}", *words]))


def on_thread(work: Callable[..., Any], *given: Any) -> Any:
    """Each call on a thread of its own: MLX arrays belong to a thread, and closing a generator ends its streams."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work, *given).result()


def go(run: Preparation, folder: TextFolder, stop: Callable[[], bool] = lambda: False) -> bool:
    """One session; whether it came to its end."""
    generator = MtpGenerator(run)
    generator.load()
    try:
        return decode(generator, folder, cell_name(run.composed), ["mtrun"], lambda share, note: None, stop)
    finally:
        generator.close()


@pytest.fixture(scope="module")
def cells(pack: Path, plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of each cell."""
    out = tmp_path_factory.mktemp("runs")
    for name, words in CELLS.items():
        folder = TextFolder.start(out / name, plan, resume=False)
        assert on_thread(go, prepared(pack, *words), folder)
        summarize(folder)
    return {name: out / name for name in CELLS}


@pytest.mark.parametrize("name", CELLS)
def test_a_run_keeps_every_text_with_what_was_measured(name: str, cells: dict[str, Path], plan: Plan) -> None:
    run = read_run(cells[name])
    assert (run.cell, run.kind, run.data["set_sha256"], run.data["missing"]) == (name, "text", plan.set_sha256, [])
    (session,) = run.data["sessions"]
    assert session["ended"] >= session["started"]
    assert list(run.lines) == plan.texts == [(0, 0), (1, 0), (0, 1), (1, 1)]
    for line in run.lines.values():
        assert line["output_tokens"] == len(line["ids"]) == TOKENS
        assert line["digest"] == ids_digest(line["ids"])
        assert Counts(**line["counts"]).identities() == []
        assert line["nll"] == pytest.approx(line["nll_sum"] / TOKENS)
        assert (line["tv"] is None) == (name == "plain")
        assert set(DEFINITIONS) < set(line)
    summary = read_json(cells[name] / "summary.json", "mtrun.eval.summary/1")
    lines = list(run.lines.values())
    assert summary["figures"]["nll"]["value"] == pytest.approx(sum(line["nll"] for line in lines) / len(lines))
    assert summary["figures"]["nll"]["n"] == SEEDS
    assert (summary["figures"]["tv"] is None) == (name == "plain")


def test_no_law_that_stays_within_the_target_leaves_its_support_through_the_served_path(cells: dict[str, Path]) -> None:
    masses = {name: [line["off_support_mass"] for line in read_texts(path).values()] for name, path in cells.items()}
    assert [name for name in STAYS if any(masses[name])] == []
    assert sum(masses["opt-0.75"]) > 0


def test_verdicts_are_summed_over_the_texts_of_a_session(cells: dict[str, Path]) -> None:
    verdicts = read_run(cells["exact"]).data["sessions"][0]["verdicts"]
    cycles = sum(line["counts"]["verify_calls"] for line in read_texts(cells["exact"]).values())
    engaged = {name: count for name, (state, count) in verdicts.items() if state == "engaged"}
    assert max(engaged.values()) >= cycles
    assert all((state == "engaged") == (count > 0) for state, count in verdicts.values())


def test_real_settings_of_two_laws_differ_by_their_law_alone(cells: dict[str, Path], pack: Path, plan: Plan) -> None:
    runs = {name: read_run(path) for name, path in cells.items()}
    for name, run in runs.items():
        assert setting_differences(runs["plain"].setting, run.setting) == []
        assert (name == "plain") == (setting_differences(runs["plain"].setting, run.setting, same_law=True) == [])
    found = compare(runs["plain"], runs["opt-0.75"])
    assert found["pairs"] == 4
    assert found["figures"]["off_support_mass"]["difference"]["value"] > 0
    folder = TextFolder.start(cells["exact"].parent / "stock", plan, resume=False)
    assert on_thread(go, prepared(pack, "profile=exact-stock"), folder)
    told = setting_differences(runs["exact"].setting, read_run(folder.path).setting)
    assert [line for line in told if line.startswith("lanes.block_verify: armed -> declined (operator")]


def test_a_run_that_was_ended_goes_on_to_the_same_texts(
    cells: dict[str, Path], pack: Path, plan: Plan, tmp_path: Path
) -> None:
    asked: list[int] = []

    def after_two() -> bool:
        asked.append(1)
        return len(asked) > 2

    folder = TextFolder.start(tmp_path / "ended", plan, resume=False)
    assert not on_thread(go, prepared(pack), folder, after_two)
    assert read_json(folder.path / RUN)["missing"] == [{"prompt": prompt, "seed": 1} for prompt in (0, 1)]
    kept = (folder.path / "answers.jsonl").read_bytes()
    (folder.path / "answers.jsonl").write_bytes(kept + b'{"prompt": 1, "se')
    again = TextFolder.start(folder.path, plan, resume=True)
    assert again.missing == [(0, 1), (1, 1)]
    assert on_thread(go, prepared(pack), again)
    assert (folder.path / "answers.jsonl").read_bytes().startswith(kept)
    assert len(read_json(folder.path / RUN)["sessions"]) == 2
    digests = [
        {key: line["digest"] for key, line in read_texts(path).items()} for path in (folder.path, cells["exact"])
    ]
    assert digests[0] == digests[1]


def test_what_would_mix_two_runs_is_refused(cells: dict[str, Path], pack: Path, plan: Plan, prompts: Path) -> None:
    path = cells["exact"]
    with pytest.raises(ConfigurationError, match="add --resume"):
        TextFolder.start(path, plan, resume=False)
    with pytest.raises(ConfigurationError, match="another plan \\(tokens: 24 -> 25\\)"):
        TextFolder.start(path, Plan.of(prompts, SEEDS, TOKENS + 1), resume=True)
    folder = TextFolder.start(path, plan, resume=True)
    folder.check(prepared(pack))
    with pytest.raises(ConfigurationError, match=r"another setting \(configuration.acceptance.law: exact -> cascade"):
        folder.check(prepared(pack, *CELLS["opt-0.75"]))
    with pytest.raises(ConfigurationError, match=r"another setting \(draft.depth: 3 -> 0; lanes.frspec: armed -> decl"):
        folder.begin("exact", "exact", read_run(cells["plain"]).setting, ["mtrun"])


def test_prompts_that_cannot_be_asked_are_found_before_anything_is_decoded(pack: Path, tmp_path: Path) -> None:
    run = prepared(pack)
    Plan.of(None, 1, 8).check_fits(run)
    with pytest.raises(ConfigurationError, match="pass the context limit of 512: give fewer --tokens"):
        Plan.of(None, 1, 505).check_fits(run)
    with pytest.raises(ConfigurationError, match="name a text file"):
        Plan.of(tmp_path / "absent.txt", 1, 8)
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(ConfigurationError, match="holds no prompt"):
        Plan.of(tmp_path / "empty.txt", 1, 8)


def test_the_packaged_prompts_are_many_and_distinct() -> None:
    plan = Plan.of(None, 1, 8)
    assert plan.set == PACKAGED
    assert len(plan.prompts) == len(set(plan.prompts)) == 24
    assert PROMPTS.read_text(encoding="utf-8").splitlines() == list(plan.prompts)


def test_the_command_sweeps_over_one_load_and_prints_the_signed_gap(pack: Path, prompts: Path, tmp_path: Path) -> None:
    words = ["-m", f"pack={pack}", "draft.depth=0,3", "--out", "m", "--against", "m/plain", "--prompts", str(prompts)]
    words += ["--seeds", str(SEEDS), "--tokens", str(TOKENS)]
    done = ran(tmp_path, "text", *words)
    assert done.returncode == 0, done.stderr
    drafted = tmp_path / "m" / "exact-draft.depth-3"
    summary = json.loads((drafted / "summary.json").read_text())
    against = summary["against"]
    plain = json.loads((tmp_path / "m" / "plain" / "summary.json").read_text())
    assert plain["against"] is None
    nll = [found["figures"]["nll"]["value"] for found in (plain, summary)]
    assert against["gaps"]["nll"]["value"] == pytest.approx(nll[1] - nll[0])
    assert (against["pairs"], against["run"]["cell"]) == (4, "plain")
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("nll ")]
    assert rows[1][4] == f"{nll[1] - nll[0]:+.4f}"
    other = [word if word != "m/plain" else str(tmp_path / "m" / "stock") for word in words[1:]]
    other[other.index("draft.depth=0,3")] = "lanes=none"
    other[other.index("m")] = "m/stock"
    assert ran(tmp_path, "text", *other).returncode == 0
    refused = ran(tmp_path, "compare", "m/stock", str(drafted))
    assert refused.returncode == 1
    assert "lanes.block_verify: declined (operator" in refused.stderr


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mtrun.runtime.cli.main", "eval", *words]
    environment = {**os.environ, "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
