"""The whole road by commands, and one sentence for each fault."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from mtrun.runtime.cli.main import main
from mtrun.runtime.forge import record
from mtrun.runtime.packs.identity import sha256_file
from support.tiny_forge import Bench

TRAIN = ("--steps", 8, "--batch", 4, "--warmup", 2, "--report-every", 2, "--measure-every", 4, "--draft-vocab", 32)


def words(*parts: object) -> list[str]:
    return ["forge", *map(str, parts)]


def train(bench: Bench, run: Path, *more: object) -> int:
    return main(
        words("train", bench.pack, "--features", bench.features, "--held", bench.held, "--out", run, *TRAIN, *more)
    )


def test_from_chats_to_a_pack_that_says_where_its_head_comes_from(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features, run, pack = tmp_path / "features", tmp_path / "run", tmp_path / "pack"
    made = ("features", bench.pack, "--data", bench.data, "--out", features, "--top", 24, "--limit", 20)
    assert main(words(*made)) == 0
    told = capsys.readouterr()
    assert "cpu_blas" in told.err
    assert "1 shards" in told.out
    assert main(words(*made)) == 0
    assert "0 of them computed now" in capsys.readouterr().out
    assert train(bench, run) == 0
    assert "overlap at depth 3" in capsys.readouterr().out
    log = record.read_log(run)
    assert [entry["step"] for entry in log] == [2, 4, 6, 8]
    assert [len(entry["overlap"]) for entry in log if "overlap" in entry] == [3, 3]
    assert (run / "curve.svg").read_text().lstrip().startswith("<?xml")
    assert main(words("build", bench.pack, "--run", run, "--out", pack, "--attach")) == 0
    capsys.readouterr()
    figures = [evaluated(capsys, bench.pack, bench.held, "--run", run), evaluated(capsys, pack, bench.held)]
    assert figures[0]["overlap"] == record.read_run(run)["figures"]["overlap"]
    assert figures[1]["overlap"] == pytest.approx(figures[0]["overlap"], abs=0.01)
    assert 1 < figures[0]["tokens_per_cycle"] < 4
    assert main(words("eval", pack, "--features", bench.held)) == 0
    assert "tokens/cycle" in capsys.readouterr().out


def evaluated(capsys: pytest.CaptureFixture[str], pack: Path, held: Path, *more: object) -> dict:
    assert main(words("eval", pack, "--features", held, "--json", *more)) == 0
    return json.loads(capsys.readouterr().out)


def test_a_head_is_trained_on_several_folders_and_says_on_what(bench: Bench, tmp_path: Path) -> None:
    assert train(bench, tmp_path / "both", "--features", bench.held) == 0
    assert train(bench, tmp_path / "some", "--features", bench.held, "--shards", 1) == 0
    both, some = (record.read_run(tmp_path / name)["data"] for name in ("both", "some"))
    assert [one["chats"] for one in both] == [40, 16]
    assert [one["shards"] for one in some] == [1, 1]
    assert [one["chats"] for one in some] == [16, 16]
    assert both[0]["file"] != both[1]["file"]


def test_a_run_can_go_on_from_the_packs_head_over_its_ids_or_others(bench: Bench, tmp_path: Path) -> None:
    pack, first = tmp_path / "pack", tmp_path / "first"
    assert train(bench, first) == 0
    assert main(words("build", bench.pack, "--run", first, "--out", pack, "--attach")) == 0

    def more(run: str, *options: object) -> dict:
        made = ("--features", bench.held, "--out", tmp_path / run, "--steps", 1, "--batch", 4, *options)
        assert main(words("train", pack, "--from-own", *made)) == 0
        return record.read_run(tmp_path / run)

    same, other = more("same"), more("other", "--draft-vocab", 16)
    assert (same["draft_vocab_size"], other["draft_vocab_size"]) == (32, 16)
    head = sha256_file(pack / "mtp.safetensors")
    assert same["recipe"]["start"] == other["recipe"]["start"] == head


def test_ctrl_c_saves_and_the_same_command_goes_on(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    append = record.append

    def interrupt(folder: Path, report: record.Report) -> None:
        append(folder, report)
        if report.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)  # a shell starts background jobs with the signal ignored
    monkeypatch.setattr(record, "append", interrupt)
    assert train(bench, tmp_path / "run") == 130
    assert "saved at step 4" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    assert train(bench, tmp_path / "run") == 0
    assert "goes on at step 4" in capsys.readouterr().err
    assert train(bench, tmp_path / "whole") == 0
    logs = [[(entry["step"], entry["loss"]) for entry in record.read_log(tmp_path / name)] for name in ("run", "whole")]
    assert logs[0] == logs[1]


def test_fresh_starts_anew(bench: Bench, tmp_path: Path) -> None:
    assert train(bench, tmp_path) == 0
    assert train(bench, tmp_path, "--fresh", "--draft-vocab", 16) == 0
    assert len(record.read_log(tmp_path)) == 4
    assert record.read_run(tmp_path)["draft_vocab_size"] == 16


def test_lines_after_the_checkpoint_and_a_torn_one_are_dropped(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"step": step, "loss": 1.0}) + "\n" for step in (2, 4, 6))
    (tmp_path / "log.jsonl").write_text(lines + '{"step": 8, "lo')
    record.cut_log(tmp_path, 4)
    assert [entry["step"] for entry in record.read_log(tmp_path)] == [2, 4]


def test_without_matplotlib_training_ends_well_and_says_what_to_install(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert train(bench, tmp_path) == 0
    assert "pip install 'mtrun[forge]'" in capsys.readouterr().err
    assert not (tmp_path / "curve.svg").exists()


@pytest.mark.parametrize(
    ("parts", "hint"),
    [
        (("train", "nowhere", "--features", "x", "--out", "y"), "neither one of"),
        (("train", "PACK", "--features", "EMPTY", "--out", "y"), "mtrun forge features"),
        (("train", "PACK", "--features", "FEATURES", "--held", "EMPTY", "--out", "EMPTY/y"), "mtrun forge features"),
        (("train", "PACK", "--features", "FEATURES", "--out", "EMPTY/y", "--top-k", 30), "--top 30"),
        (("train", "PACK", "--features", "FEATURES", "--out", "EMPTY/y", "--steps", 0), "steps"),
        (("train", "OTHER", "--features", "FEATURES", "--out", "EMPTY/y"), "make features of this one"),
        (("features", "PACK", "--data", "nothing.npz", "--out", "EMPTY/y"), "--data"),
        (("eval", "PACK", "--features", "HELD", "--run", "EMPTY"), "mtrun forge train"),
        (("eval", "PACK", "--features", "HELD"), "ships no MTP head"),
        (("build", "PACK", "--run", "EMPTY", "--out", "EMPTY/y"), "mtrun forge train"),
    ],
)
def test_a_fault_is_one_sentence_and_exit_code_2(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: tuple, hint: str
) -> None:
    from support.tiny_pack import write_tiny_pack

    if "OTHER" in parts:
        write_tiny_pack(tmp_path / "other", vocab=64, head=False, seed=9)
    (tmp_path / "empty").mkdir()
    named = {"PACK": bench.pack, "FEATURES": bench.features, "HELD": bench.held, "OTHER": tmp_path / "other"}
    spoken = [str(named.get(part, part)).replace("EMPTY", str(tmp_path / "empty")) for part in parts]
    assert main(words(*spoken)) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mtrun: error: ")]
    assert len(errors) == 1
    assert hint in errors[0]
