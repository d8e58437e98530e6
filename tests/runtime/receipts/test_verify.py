"""`mtrun receipt verify`: silent about a sound run, one line for each thing that is not."""

import json
import shutil
from pathlib import Path

import pytest

from mtrun.runtime.measure.digest import ids_digest, sha256_of
from mtrun.runtime.receipts.verify import verify


def grow(*path, by=1):
    """Adds to a number."""

    def change(value):
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] += by

    return change


def put(*path, value):
    def change(found):
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = value

    return change


def another_token(window):
    """A reply that was edited, digest and all."""
    window["ids"][3] += 1
    window["digest"] = ids_digest(window["ids"])


FAULTS = {
    "edited token": (lambda w: w["ids"].__setitem__(3, w["ids"][3] + 1), "digest is not that of its token ids"),
    "edited prompt": (lambda w: w["prompt_ids"].__setitem__(0, 9), "prompt_digest is not that of its prompt"),
    "shorter": (lambda w: (w["ids"].pop(), put("digest", value=ids_digest(w["ids"]))(w)), "tokens were asked for"),
    "context": (grow("context"), "context is"),
    "accepted": (grow("counts", "accepted"), "accepted + resamples = positions does not hold"),
    "generated": (grow("counts", "generated"), "counts.generated is 25"),
    "forwards": (grow("counts", "verify_calls"), "its cycles made 25 tokens"),
    "rate": (grow("rates", "kept_draft_rate", by=1e-6), "rates.kept_draft_rate is"),
    "rate by depth": (grow("rates", "accepted_by_depth", 0, by=0.01), "rates.accepted_by_depth is"),
    "shadow": (grow("shadow", "tokenv3-0.5", "positions"), "shadow.tokenv3-0.5 saw"),
    "plan": (put("plan_sha256", value="0" * 64), "it was measured for another plan"),
    "cell": (put("cell", value="other"), "its cell other is none of the run's"),
    "setting": (put("setting", value="0" * 16), "its setting 0000000000000000 is not in settings"),
    "law": (put("law", "law", value="typical"), "law.law is typical, and its setting says"),
    "knob": (put("law", "parameters", value={"alpha": 0.1}), "law.parameters is"),
    "verdict": (lambda w: w["verdicts"].update(block_verify=["engaged", 1], frspec=["declined", 0]), "the verdict of"),
    "absent key": (lambda w: w.pop("decode_seconds"), "decode_seconds is absent"),
    "wrong type": (put("counts", "cycles", value="many"), "counts.cycles is 'many', not a whole number"),
    "bool for a number": (put("seed", value=True), "seed is True, not a whole number"),
    "NaN": (put("decode_seconds", value=float("nan")), "decode_seconds is nan"),
    "short digest": (put("digest", value="abc"), "digest is 'abc', not 64 hexadecimal digits"),
    "no reason": (put("ids", value=None), "neither refused nor error says why"),
}


def test_a_sound_run_and_each_of_its_windows_are_silent(sound, mtrun) -> None:
    code, out, err = mtrun("verify", sound.path)
    assert (code, err) == (0, "")
    assert out.strip() == f"{sound.path}: 4 windows, 2 settings: sound"
    assert mtrun("verify", sound.window("exact", 0))[0] == 0


@pytest.mark.parametrize(("change", "said"), FAULTS.values(), ids=FAULTS)
def test_a_fault_in_a_window_is_a_line(run, change, said) -> None:
    path = run.edit(run.window("tokenv3-0.75", 1), change)
    lines = verify(run.path).lines
    assert [line for line in lines if line.startswith(f"windows/{path.name}: ") and said in line], lines
    if said not in ("digest is not that of its token ids", "its setting 0000000000000000 is not in settings"):
        return
    assert verify(path).lines, "a window alone is checked too"


def test_an_edit_that_mends_the_digest_is_beyond_what_a_receipt_can_say(run) -> None:
    """Only a replay finds it."""
    run.edit(run.window("exact", 0), another_token)
    assert verify(run.path).lines == []


def test_a_window_that_was_refused_or_died_is_sound_when_it_says_so(run) -> None:
    blank = dict.fromkeys(("ids", "digest", "law", "counts", "rates", "shadow", "decode_seconds"))
    run.edit(run.window("exact", 0), lambda window: window.update(blank, error="RuntimeError: out of memory"))
    run.edit(run.window("exact", 1), put("refused", value="the verdict of frspec is not the one it started with"))
    assert verify(run.path).lines == []


def test_a_setting_is_what_its_name_and_its_own_digest_say(run) -> None:
    name = json.loads(run.window("exact", 0).read_text())["setting"]
    file = f"settings/{name}.json"
    run.edit(file, put("config", "draft", "depth", value=3))
    assert f"{file}: " in (line := verify(run.path).lines[0])
    assert "cannot be" not in line
    value = json.loads((run.path / file).read_text())
    renamed = sha256_of(value)[:16]
    (run.path / file).rename(run.path / f"settings/{renamed}.json")
    run.edit("run.json", put("cells", "exact", "setting", value=renamed))
    for seed in (0, 1):
        run.edit(run.window("exact", seed), put("setting", value=renamed))
    assert verify(run.path).lines == [f"settings/{renamed}.json: config_sha256 is not the digest of the configuration"]


def test_windows_of_one_cell_share_their_configuration(run) -> None:
    other = json.loads(run.window("tokenv3-0.75", 0).read_text())["setting"]
    path = run.edit(run.window("exact", 0), put("setting", value=other))
    assert any("another config_sha256 than that of its cell" in line for line in verify(run.path).lines)
    assert path.exists()


def test_every_promised_window_is_there_or_listed_once(run) -> None:
    path = run.window("exact", 1)
    kept = path.read_text()
    path.unlink()
    told = "window exact, seed 1, prompt 0, round 0"
    assert verify(run.path).lines == [f"run.json: {told} is neither there nor listed as missing"]
    run.edit("run.json", put("missing", value=[{"cell": "exact", "seed": 1, "prompt": 0, "round": 0}]))
    assert verify(run.path).lines == []
    path.write_text(kept)
    assert verify(run.path).lines == [f"run.json: {told} is listed as missing, and it is there"]
    run.edit("run.json", put("missing", value=[]))
    shutil.copy(path, path.with_name("again.json"))
    assert verify(run.path).lines == [f"run.json: {told} is there 2 times"]
    run.edit(path.with_name("again.json"), put("seed", value=7))
    assert any("seed 7, prompt 0, round 0 is none of the plan's" in line for line in verify(run.path).lines)
    run.edit(path.with_name("again.json"), put("warm_up", value=True))
    assert verify(run.path).lines == []


def test_a_skipped_cell_promises_nothing(run) -> None:
    for seed in (0, 1):
        run.window("exact", seed).unlink()
    run.edit("run.json", put("cells", "exact", "skipped", value="it cannot be composed"))
    assert verify(run.path).lines == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("plan_sha256", value="0" * 64), "plan_sha256 is not the digest of the plan"),
        (put("plan", "rounds", value=2), "plan_sha256 is not the digest of the plan"),
        (put("cells", "exact", "setting", value="0" * 16), "the setting 0000000000000000 of cell exact is not in"),
        (lambda r: r["plan"].pop("seeds"), "its plan cannot be read (KeyError"),
        (lambda r: r.pop("sessions"), "sessions is absent"),
    ],
    ids=["digest", "plan", "setting", "unreadable plan", "shape"],
)
def test_a_fault_in_the_run_is_a_line(run, change, said) -> None:
    run.edit("run.json", change)
    assert any(line.startswith("run.json: ") and said in line for line in verify(run.path).lines)


def test_the_command_ends_with_1_and_says_how_many(run, mtrun, tmp_path: Path) -> None:
    (run.path / "windows/torn.json").write_text('{"schema": "mtrun.win')
    code, out, err = mtrun("verify", run.path)
    assert code == 1
    assert out.startswith("torn.json: ")
    assert err.strip().endswith("4 windows, 2 settings: 1 problem")
    (tmp_path / "empty").mkdir()
    assert mtrun("verify", tmp_path / "empty")[0] == 2


def eval_run(run, kind) -> Path:
    """An eval run with the windows' replies as its answers."""
    windows = [json.loads(run.window("exact", seed).read_text()) for seed in (0, 1)]
    lines = []
    for window in windows:
        line = {key: window[key] for key in ("seed", "ids", "digest", "counts", "law", "decode_seconds")}
        line |= {"output_tokens": len(window["ids"])}
        if kind == "tasks":
            line |= {"task": "t1", "family": "f", "text": "", "reason": "length", "truncated": True, "ok": False}
            line |= {"why": "it was cut off"}
        else:
            line |= {"prompt": 0, "nll": 1.5}
        lines.append(line)
    folder = run.path.parent / kind
    shutil.copytree(run.path / "settings", folder / "settings")
    (folder / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = {"set": "nano", "set_sha256": "1" * 64, "seeds": [0, 1], "tasks": 1, "prompts": ["Hello"], "max_tokens": 24}
    found = json.loads((run.path / "run.json").read_text())
    cells = {"exact": found["cells"]["exact"]}
    found |= {"schema": "mtrun.eval.run/1", "kind": kind, "plan": plan, "plan_sha256": sha256_of(plan), "cells": cells}
    found |= {"set": "nano", "set_sha256": "1" * 64}
    (folder / "run.json").write_text(json.dumps(found))
    return folder


ANSWER_FAULTS = {
    "digest": (lambda lines: lines[0]["ids"].__setitem__(0, 7), "answer 1: digest is not that of its token ids"),
    "length": (grow(1, "output_tokens"), "answer 2: output_tokens is 25"),
    "counters": (grow(0, "counts", "cycles"), "answer 1: resamples + bonus = cycles does not hold"),
    "twice": (lambda lines: lines.append(lines[0]), "seed 0 is there 2 times"),
    "one short": (lambda lines: lines.pop(), "the plan promises 2 answers: 1 are there and 0 are listed"),
    "another seed": (put(0, "seed", value=9), "seeds 9 are none of the plan's"),
    "shape": (lambda lines: lines[1].pop("law"), "answer 2: law is absent"),
}


@pytest.mark.parametrize("kind", ["tasks", "text"])
@pytest.mark.parametrize(("change", "said"), ANSWER_FAULTS.values(), ids=ANSWER_FAULTS)
def test_a_fault_in_an_answer_is_a_line(run, kind, change, said) -> None:
    folder = eval_run(run, kind)
    assert verify(folder).lines == []
    assert verify(folder).answers == 2
    path = folder / "answers.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert any(said in line for line in verify(folder).lines), verify(folder).lines


def test_an_eval_run_has_one_cell_whole_lines_and_no_cut_answer_that_counts(run) -> None:
    folder = eval_run(run, "tasks")
    path = folder / "answers.jsonl"
    path.write_text(path.read_text().replace('"ok": false', '"ok": true', 1) + '{"task": "t9", "se')
    found = json.loads((folder / "run.json").read_text())
    found["cells"]["other"] = found["cells"]["exact"]
    found["set_sha256"] = "2" * 64
    (folder / "run.json").write_text(json.dumps(found))
    assert verify(folder).lines == [
        "run.json: it has 2 cells, and an eval run has one",
        "run.json: set_sha256 is not that of its plan",
        "answers.jsonl: 1 of 3 lines cannot be read",
        "answers.jsonl, answer 1: it was truncated and counts as right",
    ]
