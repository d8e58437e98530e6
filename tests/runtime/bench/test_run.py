"""The real command on a tiny pack: windows, what they hold, what is refused, what is left out."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from mtrun.lanes.contract import Proof
from mtrun.lanes.row_kernel import LANE
from mtrun.runtime.bench import runner
from mtrun.runtime.bench.observe import FIGURES, refusal
from mtrun.runtime.bench.plan import schedule
from mtrun.runtime.cli import main as cli
from mtrun.runtime.config.compose import compose
from mtrun.runtime.measure.digest import ids_digest, sha256_of
from mtrun.runtime.measure.store import read_setting
from mtrun.runtime.preparation import prepare

CELLS = ("--cell", "plain=draft.depth=0", "--cell", "exact=draft.depth=3")
TOKENS = 8


def counted(ran: Any) -> list[dict[str, Any]]:
    return [window for window in ran.windows if not window["warm_up"]]


# -- a whole run -----------------------------------------------------------------------------------------------------
def test_every_planned_window_has_its_file_and_nothing_else_counts(sweep: Any) -> None:
    assert sweep.code == 0, sweep.err
    names = {path.name for path in (sweep.path / "windows").iterdir()}
    planned = {slot.file for slot in schedule(sweep.folder.plan)}
    assert len(planned) == 2 * 3 * 2
    assert planned < names
    assert names - planned == {f"{cell}.s0.p0.r-1{kind}.json" for cell in ("plain", "exact") for kind in ("", ".split")}
    assert len(counted(sweep)) == len(planned)
    assert sweep.folder.data["missing"] == []


def test_a_window_holds_what_was_asked_for_and_what_was_seen(sweep: Any) -> None:
    run = sweep.folder
    for window in counted(sweep):
        assert window["schema"] == "mtrun.window/1"
        assert set(FIGURES) <= window.keys()
        assert window["plan_sha256"] == run.data["plan_sha256"] == sha256_of(run.data["plan"])
        assert (window["error"], window["refused"], window["reason"]) == (None, None, "length")
        assert len(window["ids"]) == window["tokens"] == TOKENS
        assert window["digest"] == ids_digest(window["ids"])
        assert window["prompt_digest"] == ids_digest(window["prompt_ids"])
        assert window["context"] == len(window["prompt_ids"]) == window["prefilled"][-1]
        assert 0 < window["prefill_seconds"] < window["ttft_seconds"] < window["wall_seconds"]
        assert 0 < window["decode_seconds"] < window["wall_seconds"]
        assert 0 < window["decode_cpu_seconds"] < window["cpu_seconds"]
        assert window["decode_tok_s"] == pytest.approx((TOKENS - 1) / window["decode_seconds"])
        assert window["prefill_tok_s"] == pytest.approx(window["context"] / window["prefill_seconds"])
        assert 0 < window["token_ms"]["p50"] <= window["token_ms"]["p99"]
        assert window["nll"] > 0
        assert window["memory"]["rss_peak_bytes"] >= window["memory"]["rss_bytes"] > 0
        drafted = window["cell"] == "exact"
        assert (window["counts"]["drafted"] > 0) is drafted
        assert (window["rates"]["kept_draft_rate"] is not None) is drafted
        assert set(window["split_ms"]) == {"draft", "verify", "rows", "judge", "commit", "rest"}
        assert read_setting(sweep.path, window["setting"])["config"]["draft"]["depth"] == (3 if drafted else 0)


def test_cells_of_a_seed_and_prompt_share_prompt_and_request_seed(sweep: Any) -> None:
    pairs = defaultdict(set)
    for window in counted(sweep):
        pairs[window["seed"], window["prompt"]].add((window["request_seed"], window["prompt_digest"]))
    assert len(pairs) == 3 * 2
    assert all(len(pair) == 1 for pair in pairs.values())


def test_a_run_says_what_it_measured_with(sweep: Any) -> None:
    data = sweep.folder.data
    assert (data["schema"], data["kind"]) == ("mtrun.bench.run/1", "sweep")
    (session,) = data["sessions"]
    assert session["started"] < session["ended"]
    assert session["preflight"]["cores"] >= 1
    for name, cell in data["cells"].items():
        setting = read_setting(sweep.path, cell["setting"])
        assert setting["overrides"] == cell["overrides"]
        assert cell["overrides"][-1] == ("draft.depth=0" if name == "plain" else "draft.depth=3")
        assert all(lane["state"] != "engaged" for lane in setting["audit"]["lanes"]), "kept before anything was served"
        assert setting["code"]["source_sha256"]


def test_each_cell_keeps_its_own_configuration_provenance_and_verdicts(sweep: Any) -> None:
    settings = {name: read_setting(sweep.path, cell["setting"]) for name, cell in sweep.folder.data["cells"].items()}
    assert settings["plain"]["config_sha256"] != settings["exact"]["config_sha256"]
    assert all(setting["provenance"]["draft.depth"][0] == "command line" for setting in settings.values())
    declined = {(one["cell"], one["verdicts"]["block_verify"][0] == "declined") for one in counted(sweep)}
    assert declined == {("plain", True), ("exact", False)}, "over one load of the weights"


def test_the_summary_is_computed_from_the_folder_and_printed(sweep: Any) -> None:
    stored = json.loads((sweep.path / "summary.json").read_text())
    assert stored == sweep.summary
    plain, exact = stored["cells"]
    speeds = [window["decode_tok_s"] for window in counted(sweep) if window["cell"] == "exact"]
    assert exact["speed"] == {
        "median": pytest.approx(sorted(speeds)[2] / 2 + sorted(speeds)[3] / 2),
        "low": min(speeds),
        "high": max(speeds),
        "n": 6,
    }
    assert plain["to_plain"]["value"] == pytest.approx(1.0)
    assert exact["to_plain"]["value"] * plain["to_exact"]["value"] == pytest.approx(1.0)
    assert exact["to_plain"]["n"] == 3, "the seed is the unit, not the window"
    assert plain["tokens_per_cycle"]["value"] == 1.0
    accepted = sum(window["counts"]["accepted"] for window in counted(sweep))
    assert exact["counts"]["accepted"] == accepted
    assert stored["windows"] == {**stored["windows"], "counted": 12, "planned": 12, "warm_up": 4}
    assert (stored["missing"], stored["skipped"], stored["unequal_n"]) == ([], {}, None)
    assert "12 of 12 windows" in sweep.out
    assert f"({min(speeds):.1f}-{max(speeds):.1f}, 6)" in sweep.out


def test_a_run_is_not_overwritten_and_other_options_are_not_joined(sweep: Any, bench: Any) -> None:
    same = ("--seeds", "3", "--per-seed", "2")
    before = (sweep.path / "run.json").read_bytes()
    assert "add --resume" in bench(sweep.path, *CELLS, *same).err
    assert bench(sweep.path, *CELLS, *same).code == 2
    other = bench(sweep.path, *CELLS, "--seeds", "4", "--resume")
    assert other.code == 2
    assert "other options" in other.err
    assert (sweep.path / "run.json").read_bytes() == before
    again = bench(sweep.path, *CELLS, *same, "--resume")
    assert (again.code, len(again.folder.data["sessions"])) == (0, 1)
    assert "measured already" in again.err


def test_resume_measures_the_window_that_is_lacking_and_no_other(bench: Any, tmp_path: Path) -> None:
    words = (*CELLS, "--seeds", "3", "--no-split")
    ran = bench(tmp_path / "run", *words)
    assert ran.code == 0, ran.err
    folder = tmp_path / "run" / "windows"
    lost = folder / "exact.s1.p1.r0.json"
    before = {path: path.read_bytes() for path in folder.glob("*.r0.json") if path != lost}
    digest = json.loads(lost.read_text())["digest"]
    lost.unlink()
    (folder / f".{lost.name}.77").write_text("{ half")
    again = bench(tmp_path / "run", *words, "--resume")
    assert again.code == 0, again.err
    assert {path: path.read_bytes() for path in before} == before, "a window was measured twice"
    assert json.loads(lost.read_text())["digest"] == digest, "a session later it draws the same"
    assert [one["session"] for one in counted(again)].count(1) == 1
    assert {one["cell"] for one in again.windows if one["warm_up"] and one["session"] == 1} == {"exact"}


def test_a_lane_that_failed_its_proof_is_told_with_the_cells_that_lack_it(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(LANE), "prove", lambda *_: Proof(False, "It is off by one."))
    ran = bench(tmp_path / "run", *CELLS, "--seeds", "1", "--no-split", "--no-nll")
    assert ran.code == 0, "it was declined before it served, and so the windows are what was asked for"
    assert ran.summary["fallen_lanes"] == {name: {"row_kernel": "It is off by one."} for name in ("plain", "exact")}
    assert "without row_kernel: plain, exact: It is off by one." in ran.out


# -- what may not be used --------------------------------------------------------------------------------------------
def test_a_window_that_is_not_what_was_asked_for_is_refused(sweep: Any) -> None:
    window = next(one for one in counted(sweep) if one["cell"] == "exact")
    setting = read_setting(sweep.path, window["setting"])
    verdicts, counts = window["verdicts"], window["counts"]
    armed = next(lane for lane, (state, _) in verdicts.items() if state == "engaged")
    declined = next(lane for lane, (state, _) in verdicts.items() if state == "declined")
    bad = {
        "7 tokens instead of 8": {"ids": window["ids"][:-1]},
        f"verdict of {armed}": {"verdicts": {**verdicts, armed: ["declined", 0]}},
        f"verdict of {declined}": {"verdicts": {**verdicts, declined: ["armed", 0]}},
        "accepted + resamples": {"counts": {**counts, "accepted": counts["accepted"] + 1}},
        "the law typical decided": {"law": {**window["law"], "law": "typical"}},
        "not cold": {"prefilled": [600, len(window["prompt_ids"])]},
    }
    assert refusal(window, TOKENS, setting) is None
    for part, change in bad.items():
        assert part in str(refusal({**window, **change}, TOKENS, setting))


def test_dead_and_refused_windows_are_kept_and_the_run_goes_on(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = runner.observe, []

    def sometimes(generator: Any, ids: Any, seed: int, tokens: int, laws: Any) -> dict[str, Any]:
        calls.append(seed)
        if (seed, generator.prepared.config.draft.depth) == (1001, 3):
            raise FloatingPointError("a row is not finite")
        found = real(generator, ids, seed, tokens, laws)
        if (seed, generator.prepared.config.draft.depth) == (2002, 0):
            found["verdicts"] = {**found["verdicts"], "row_kernel": ["declined", 0]}
        return found

    monkeypatch.setattr(runner, "observe", sometimes)
    ran = bench(tmp_path / "run", *CELLS, "--seeds", "3", "--no-split")
    assert ran.code == 1
    held = {(one["cell"], one["seed"]): one for one in counted(ran)}
    dead, refused = held["exact", 1], held["plain", 2]
    assert dead["error"] == "FloatingPointError: a row is not finite"
    assert all(dead[name] is None for name in FIGURES)
    assert "row_kernel" in refused["refused"]
    summary = ran.summary
    assert [(one["cell"], one["seed"]) for one in summary["missing"]] == [("exact", 1), ("plain", 2)]
    assert summary["windows"]["counted"] == 4
    assert [row["to_plain"] and row["to_plain"]["n"] for row in summary["cells"]] == [2, 1]
    assert "missing: exact, seed 1, prompt 1: died: FloatingPointError" in ran.out
    measured = len(calls)
    assert bench(tmp_path / "run", *CELLS, "--seeds", "3", "--no-split", "--resume").code == 1
    assert len(calls) == measured, "what died stays as it was told"


def test_unequal_numbers_of_windows_are_flagged(bench: Any, tmp_path: Path) -> None:
    ran = bench(tmp_path / "run", *CELLS, "--seeds", "2", "--no-split", "--no-nll")
    (tmp_path / "run" / "windows" / "exact.s1.p1.r0.json").unlink()
    summary = ran.summary
    assert summary["unequal_n"] == {"plain": 2, "exact": 1}
    assert summary["missing"][0]["reason"] == "not measured"
    plain, exact = summary["cells"]
    assert plain["to_exact"]["n"] == exact["to_plain"]["n"] == 1, "ratios are formed over what both have"
    speeds = {(one["cell"], one["seed"]): one["decode_tok_s"] for one in counted(ran)}
    assert exact["to_plain"]["value"] == pytest.approx(speeds["exact", 0] / speeds["plain", 0])
    assert all(window["nll"] is None and window["split_ms"] is None for window in ran.windows)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("draft.depht=3", "did you mean draft.depth"),
        ("engine.threads=2", "engine.threads holds for the whole process"),
        ("audit.require=[context_copy]", "context_copy is declined"),
    ],
)
def test_a_cell_that_cannot_be_had_is_told_and_the_others_go_on(
    bench: Any, tmp_path: Path, words: str, part: str
) -> None:
    ran = bench(tmp_path / "run", *CELLS, "--cell", f"odd={words}", "--seeds", "2", "--no-split", "--no-nll")
    assert ran.code == 1
    assert part in ran.folder.data["cells"]["odd"]["skipped"]
    assert part in ran.folder.data["missing"][0]["reason"]
    assert len(counted(ran)) == 4
    assert part in ran.summary["skipped"]["odd"]
    assert ran.summary["cells"][2]["speed"] is None
    assert "skipped: odd" in ran.out


def test_the_first_cell_that_can_loads_for_the_others(bench: Any, tmp_path: Path) -> None:
    first = ("--cell", "odd=audit.require=[context_copy]")
    ran = bench(tmp_path / "run", *first, *CELLS, "--seeds", "2", "--no-split", "--no-nll")
    assert (ran.code, len(counted(ran))) == (1, 4)


# -- other protocols -------------------------------------------------------------------------------------------------
def test_a_sweep_in_hydras_grammar_is_one_run_of_one_load(bench: Any, tmp_path: Path) -> None:
    ran = bench(tmp_path / "run", "-m", "acceptance=cascade", "cascade.alpha=0.75,0.95", "--seeds", "2", "--no-split")
    assert ran.code == 0, ran.err
    assert "cascade.rule=tokenv3 is measured" in ran.err
    laws = {one["cell"]: one["law"] for one in counted(ran)}
    assert {name: law["parameters"]["alpha"] for name, law in laws.items()} == {
        "cascade.alpha-0.75": 0.75,
        "cascade.alpha-0.95": 0.95,
    }
    assert all(law["rule"] == "tokenv3" for law in laws.values())


def test_other_names_of_keys_are_swept_like_the_keys(bench: Any, tmp_path: Path) -> None:
    words = ("-m", "--cascade-threshold", "0.5,0.75", "acceptance=cascade", "cascade.rule=opt", "--seeds", "1")
    ran = bench(tmp_path / "run", *words, "--no-split", "--no-nll")
    assert [one["law"]["parameters"]["alpha"] for one in counted(ran)] == [0.5, 0.75]
    assert "another name of cascade.alpha" in ran.err


def test_a_ladder_measures_what_fits_and_tells_what_does_not(bench: Any, tmp_path: Path, pack: Path) -> None:
    run = prepare(compose([f"pack={pack}", "draft.depth=3"]))
    need = run.footprint.request(300, TOKENS, run.config.engine.prefill_chunk, 3)
    cap = run.footprint.weights + run.footprint.draft_rows + need
    sizes = ("--contexts", "64,300,400,4k", "--memory-cap", str(cap), "--seeds", "2", "--no-nll", "--no-split")
    ran = bench(tmp_path / "run", "--protocol", "ladder", *CELLS, *sizes)
    held = {(one["cell"], one["seed"], one["context_asked"]): one for one in counted(ran)}
    assert len(held) == 2 * 2 * 4
    for (_, _, asked), window in held.items():
        if asked <= 300:
            assert window["context"] == len(window["prompt_ids"]) == asked
        else:
            assert window["digest"] is None
            assert "memory" in window["refused"]
    assert ran.code == 0, "a window over the cap was left out on purpose"
    rows = {(row["cell"], row["context"]): row for row in ran.summary["cells"]}
    assert rows["exact", 300]["to_plain"]["n"] == 2
    assert rows["exact", 400]["speed"] is None
    assert {one["context_asked"] for one in ran.summary["missing"]} == {400, 4096}
    assert "context 300" in ran.out


def test_a_context_beyond_the_packs_is_cut_once_and_then_refused(bench: Any, tmp_path: Path) -> None:
    sizes = ("--contexts", "1k,2k", "--seeds", "1", "--no-nll", "--no-split")
    ran = bench(tmp_path / "run", "--protocol", "ladder", "--cell", "plain=draft.depth=0", *sizes)
    cut, refused = sorted(counted(ran), key=lambda one: one["context_asked"])
    assert cut["context"] == 512 - TOKENS
    assert "a context of 512 tokens holds no prompt of 2048" in refused["refused"]
    assert ran.code == 1


def test_abab_compares_two_cells_in_turns(bench: Any, tmp_path: Path) -> None:
    words = ("--protocol", "abab", "--a", "profile=turbo draft.depth=0", "--b", "exact", "--seeds", "4")
    ran = bench(tmp_path / "run", *words, "--margin", "0.1")
    assert ran.code == 0, ran.err
    found = ran.summary["abab"]
    assert (found["a"], found["b"], found["margin"]) == ("profile-turbo_draft.depth-0", "exact", 0.1)
    assert len(counted(ran)) == 2 * 4 * 2
    assert sum(one["warm_up"] and "split" not in one for one in ran.windows) == 2, "one pair"
    assert found["sign_flip"]["flips"] == 2**4
    assert len(found["pairs"]) == found["ratio"]["n"] == 4
    factors = {name: one["value"] for name, one in found["factors"].items()}
    assert factors["tokens_per_cycle"] >= 1, "plain decoding makes one"
    assert factors["ms_per_cycle"] > 0
    rounds = defaultdict(set)
    for one in counted(ran):
        rounds[one["cell"], one["seed"]].add(one["digest"])
    assert all(len(digests) == 1 for digests in rounds.values()), "a round repeats the same draws"
    assert "sign-flip p" in ran.out


def test_two_equal_sides_are_told_apart(bench: Any, tmp_path: Path) -> None:
    words = ("--protocol", "abab", "--a", "exact", "--b", "exact", "--seeds", "2", "--rounds", "1", "--no-split")
    ran = bench(tmp_path / "run", *words, "--no-nll")
    assert list(ran.folder.data["cells"]) == ["exact.a", "exact.b"]
    left, right = ran.summary["cells"]
    assert left["digest"] == right["digest"]


def test_shadow_laws_watch_and_change_nothing(bench: Any, tmp_path: Path) -> None:
    words = ("--cell", "exact=draft.depth=3", "--seeds", "2", "--no-split", "--no-nll")
    alone = bench(tmp_path / "alone", *words)
    shadow = "tokenv3-0.95 acceptance=cascade cascade.rule=opt cascade.alpha=0.25,0.5"
    watched = bench(tmp_path / "watched", *words, "--shadow", shadow)
    assert watched.code == 0, watched.err
    assert [one["digest"] for one in counted(alone)] == [one["digest"] for one in counted(watched)]
    for window in counted(watched):
        assert set(window["shadow"]) == {"tokenv3-0.95", "cascade.alpha-0.25", "cascade.alpha-0.5"}
        assert all(one["positions"] == window["counts"]["positions"] for one in window["shadow"].values())
        assert window["shadow_seconds"] > 0


# -- words that do not belong together -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--protocol", "micro"], "none of them reads pack=nano"),
        (["--seconds", "1"], "add --protocol micro"),
        (["--protocol", "abab"], "give --a and --b"),
        (["--protocol", "abab", "--a", "exact", "--b", "plain", "--cells", "plain"], "drop -m, --cells"),
        (["--a", "exact"], "add --protocol abab"),
        (["--protocol", "ladder"], "--contexts 1k,2k"),
        (["--contexts", "1k"], "--protocol ladder"),
        (["--protocol", "ladder", "--contexts", "1k,big"], "cannot be read"),
        (["--seed-list", "1,1"], "names a number twice"),
        (["--memory-cap", "much"], "--memory-cap"),
        (["--cells", "plane"], "there is no cell"),
        (["cascade.alpha=0.5,0.9"], "add -m"),
        (["draft.depht=3"], "did you mean"),
    ],
)
def test_a_wrong_option_says_what_to_type(
    words: list[str], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "pack=nano", "--busy-ok", "--out", str(tmp_path / "run"), *words]) == 2
    assert part in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
