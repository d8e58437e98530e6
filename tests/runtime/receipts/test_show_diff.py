"""`mtrun receipt show` and `diff`: what a person is told of one window and of two."""

import json
import shutil

from mtrun.runtime.measure.digest import ids_digest, sha256_of


def test_show_tells_what_was_asked_on_decided_and_found(sound, mtrun) -> None:
    path = sound.window("tokenv3-0.75", 1)
    window = json.loads(path.read_text())
    code, out, _ = mtrun("show", path)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == f"{path.name}: sweep, cell tokenv3-0.75 (tokenv3-0.75, depth 2)"
    assert f"asked     24 tokens after {window['context']} of a prompt; seed 1, prompt 0" in out
    assert "cascade, tokenv3, alpha 0.75, not distribution-exact; engaged: decided every draft" in out
    assert any(line.split() == ["draft.depth", "2", "command", "line", "(draft.depth=2)"] for line in lines)
    for lane, (state, count) in window["verdicts"].items():
        told = next(line.split() for line in lines if line.startswith(f"  {lane} "))
        assert told[1 : 3 if count else 2] == [state, *([str(count)] if count else [])]
    assert any(count for _, count in window["verdicts"].values())
    assert any(line.split() == ["counts.cycles", str(window["counts"]["cycles"])] for line in lines)
    kept = window["rates"]["kept_draft_rate"]
    assert any(line.split() == ["rates.kept_draft_rate", f"{kept:.4g}"] for line in lines)
    assert "shadow laws (valid position by position" in out
    assert not any(line.startswith("  server.port") for line in lines), "what is built in is not told"


def test_show_json_is_the_window_with_its_setting(sound, mtrun) -> None:
    path = sound.window("exact", 0)
    code, out, _ = mtrun("show", path, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["window"] == json.loads(path.read_text())
    assert sha256_of(found["setting"])[:16] == found["window"]["setting"]


def test_a_file_that_is_no_measured_window_is_refused_with_its_reason(run, mtrun) -> None:
    code, _, err = mtrun("show", run.path / "run.json")
    assert code == 2
    assert "mtrun.window/1" in err
    code, _, err = mtrun("show", run.path)
    assert code == 2
    assert f"give one window of it, such as {run.window('exact', 0)}" in err
    path = run.edit(run.window("exact", 0), lambda window: window.update(ids=None, error="it ran out of memory."))
    code, _, err = mtrun("show", path)
    assert code == 2
    assert "holds no reply (it ran out of memory)" in err


def test_two_windows_of_one_cell_have_one_setting_and_were_asked_two_things(sound, mtrun) -> None:
    code, out, _ = mtrun("diff", sound.window("exact", 0), sound.window("exact", 1))
    assert code == 0
    assert "settings are the same" in out
    assert "request_seed  0 -> 1000" in out
    ids = [json.loads(sound.window("exact", seed).read_text())["ids"] for seed in (0, 1)]
    at = next(i for i, (a, b) in enumerate(zip(*ids, strict=True)) if a != b)
    assert f"output differs from token {at} on: {ids[0][at]} -> {ids[1][at]}" in out


def test_two_laws_differ_in_values_with_who_decided_verdicts_code_and_figures(sound, mtrun) -> None:
    code, out, _ = mtrun("diff", sound.window("exact", 0), sound.window("tokenv3-0.75", 0))
    assert code == 1
    told = {tuple(line.split()[:2]): line for line in out.splitlines() if line.startswith("  ")}
    assert "exact, group file" in told["config", "acceptance.law"]
    assert told["config", "cascade.alpha"].endswith(
        "null, default (built in) -> 0.75, command line (cascade.alpha=0.75)"
    )
    assert told["law", "parameters.alpha"].endswith("null -> 0.75")
    assert "declined, auto-arm (The cascade law builds its coins on single rows" in told["lanes", "block_verify"]
    assert ("code", "law_code_sha256") in told
    assert not any(section in ("pack", "versions", "machine", "sampler") for section, _ in told)
    windows = [json.loads(sound.window(cell, 0).read_text()) for cell in ("exact", "tokenv3-0.75")]
    cycles = [window["counts"]["cycles"] for window in windows]
    row = next(line.split() for line in out.splitlines() if line.startswith("counts.cycles"))
    assert row == ["counts.cycles", *map(str, cycles), f"{cycles[1] / cycles[0]:.3f}"]


def test_readings_and_times_of_a_session_are_no_settings(run, mtrun, tmp_path) -> None:
    other = shutil.copytree(run.path, tmp_path / "other")

    def later(setting) -> None:
        setting["machine"]["cpu_mhz"] = 1
        setting["audit"]["serving_since"] = 0
        setting["audit"]["lanes"][0]["reason"] = "measured anew"
        setting["code"]["commit"] = "0" * 40

    run.reset("exact", later)
    ours, theirs = run.window("exact", 0), other / "windows" / run.window("exact", 0).name
    assert json.loads(ours.read_text())["setting"] != json.loads(theirs.read_text())["setting"]
    code, out, _ = mtrun("diff", ours, theirs)
    assert code == 0
    assert "output is equal: 24 tokens" in out


def test_each_part_of_a_setting_counts(run, mtrun, tmp_path) -> None:
    other = shutil.copytree(run.path, tmp_path / "other")

    def elsewhere(setting) -> None:
        setting["machine"]["cores"] = 999
        setting["versions"]["numpy"] = "0.1"
        setting["pack"]["trunk_identity"] = "f" * 64
        setting["sampler"]["top_p"] = 0.5
        setting["code"]["source_sha256"] = "e" * 64
        setting["lanes_code_sha256"]["frspec"] = "d" * 64
        setting["native_sha256"] = "c" * 64

    run.reset("exact", elsewhere)
    code, out, _ = mtrun("diff", other / "windows" / run.window("exact", 0).name, run.window("exact", 0))
    assert code == 1
    found = {tuple(line.split("->")[0].split()[:-1]) for line in out.splitlines() if line.startswith("  ")}
    assert {
        ("machine", "cores"),
        ("versions", "numpy"),
        ("pack", "trunk_identity"),
        ("sampler", "top_p"),
        ("code", "source_sha256"),
        ("code", "of", "lanes", "frspec"),
        ("code", "native_sha256"),
    } <= found


def test_a_reply_that_ends_early_differs_where_it_ends(run, mtrun, tmp_path) -> None:
    other = shutil.copytree(run.path, tmp_path / "other")

    def shorter(window) -> None:
        window["ids"] = window["ids"][:-4]
        window["digest"] = ids_digest(window["ids"])

    path = run.edit(run.window("exact", 0), shorter)
    code, out, _ = mtrun("diff", other / "windows" / path.name, path)
    assert code == 0
    assert "output differs from token 20 on:" in out
    assert "-> no more" in out
