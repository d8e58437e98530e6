"""`mtrun receipt replay`: the recorded configuration gives the recorded tokens again, or it says where they part."""

import json

import pytest

from mtrun.runtime.receipts.verify import verify


@pytest.mark.parametrize("cell", ["exact", "tokenv3-0.75"])
def test_a_replay_gives_the_recorded_tokens_and_figures_side_by_side(sound, mtrun, cell) -> None:
    code, out, err = mtrun("replay", sound.window(cell, 1))
    window = json.loads(sound.window(cell, 1).read_text())
    assert code == 0
    assert out.startswith(f"output is equal: 24 tokens, digest {window['digest'][:16]}\n")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert rows["figure"] == ["recorded", "replayed", "replayed/recorded"]
    assert window["counts"]["accepted"] > 0
    assert rows["counts.accepted"] == [str(window["counts"]["accepted"])] * 2 + ["1.000"]
    recorded, replayed, ratio = (float(value.replace(",", "")) for value in rows["decode_seconds"])
    assert replayed > 0
    assert ratio == pytest.approx(replayed / recorded, rel=2e-2)
    assert "shadow laws watched the recorded window" in err
    assert "not the setting" not in err


def test_another_output_ends_with_1_and_its_first_position(run, mtrun) -> None:
    path = run.edit(run.window("exact", 0), lambda window: window["ids"].__setitem__(5, window["ids"][5] + 1))
    found = json.loads(path.read_text())["ids"][5]
    code, out, _ = mtrun("replay", path)
    assert code == 1
    assert out.startswith(f"output differs from token 5 on: {found} -> {found - 1}\n")


def test_another_seed_gives_another_output(run, mtrun) -> None:
    path = run.edit(run.window("exact", 0), lambda window: window.update(request_seed=77))
    assert mtrun("replay", path)[0] == 1


def test_a_replay_is_kept_as_a_sound_run_that_lists_the_rest_as_missing(sound, mtrun, tmp_path) -> None:
    folder, recorded = tmp_path / "again", sound.window("exact", 1)
    assert mtrun("replay", recorded, "--out", folder)[0] == 0
    done = verify(folder)
    assert (done.windows, done.settings, done.lines) == (1, 1, [])
    kept, before = (json.loads((at / "windows" / recorded.name).read_text()) for at in (folder, sound.path))
    assert (kept["ids"], kept["cell"], kept["seed"]) == (before["ids"], "exact", 1)
    assert kept["wall_seconds"] != before["wall_seconds"]
    assert len(json.loads((folder / "run.json").read_text())["missing"]) == 3
    assert mtrun("diff", recorded, folder / "windows" / recorded.name)[0] == 0
    code, _, err = mtrun("replay", recorded, "--out", folder)
    assert code == 2
    assert "is not empty" in err


def test_another_pack_is_refused(run, mtrun) -> None:
    run.reset("exact", lambda setting: setting["pack"]["sha256"].update({"mtp.safetensors": "f" * 64}))
    code, out, err = mtrun("replay", run.window("exact", 0))
    assert (code, out) == (2, "")
    assert "was measured with another nano (sha256.mtp.safetensors ffffffffffff" in err


def test_other_code_versions_machine_and_values_are_warned_of(run, mtrun) -> None:
    def elsewhere(setting) -> None:
        setting["code"]["source_sha256"] = "e" * 64
        setting["versions"]["mlx"] = "0.0.1"
        setting["machine"]["processor"] = "abacus"
        setting["config"]["engine"]["prefill_chunk"] = 3

    run.reset("exact", elsewhere)
    code, _, err = mtrun("replay", run.window("exact", 0))
    assert code == 0
    assert "warning: this is not the setting that was recorded (config, code, versions, machine):" in err
    told = [line.split() for line in err.splitlines() if line.startswith("  ")]
    assert ["versions", "mlx", "0.0.1"] in [line[:3] for line in told]
    assert ["machine", "processor", "abacus"] in [line[:3] for line in told]


def test_a_word_that_was_not_told_is_left_out(run, mtrun) -> None:
    run.reset("exact", lambda setting: setting["overrides"].append("server.api_key=(hidden)"))
    assert mtrun("replay", run.window("exact", 0))[0] == 0


def test_words_that_cannot_be_composed_here_end_in_one_sentence(run, mtrun) -> None:
    run.reset("exact", lambda setting: setting["overrides"].append("draft.dept=2"))
    code, _, err = mtrun("replay", run.window("exact", 0))
    assert code == 2
    assert err.count("\n") == 1
    assert "draft.depth" in err
