"""A report cannot drift from its receipts unnoticed, and the same receipts make the same bytes."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from mtrun.runtime.cli.main import main
from mtrun.runtime.report import manifest as manifests
from mtrun.runtime.report.build import compile_report, render
from mtrun.runtime.report.manifest import check, make
from mtrun.runtime.report.runs import read_runs
from support.measured_runs import change


def read(root: Path) -> dict:
    return json.loads((root / "report/manifest.json").read_text())


def test_the_manifest_states_bytes_and_digest_of_every_file(written: Path) -> None:
    stated = read(written)
    there = {path.relative_to(written / "report").as_posix() for path in (written / "report").rglob("*.*")}
    assert stated["files"].keys() | {"manifest.json"} == there
    for name, one in stated["files"].items():
        content = (written / "report" / name).read_bytes()
        assert (one["bytes"], one["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())


def test_the_receipts_behind_a_figure_can_be_found(written: Path) -> None:
    stated = read(written)
    sources = stated["files"]["figures/sweep-decode-alpha.svg"]["sources"]
    assert set(sources) == {"sweep/opt-0", "sweep/opt-0.25", "sweep/tokenv3-0.95", "sweep/plain", "sweep/exact"}
    run = next(one for one in stated["runs"] if one["name"] == "sweep")
    window = written / "report" / run["path"] / run["cells"]["opt-0.25"][-1]
    receipt = run["receipts"][run["cells"]["opt-0.25"][-1]]
    assert receipt["sha256"] == hashlib.sha256(window.read_bytes()).hexdigest()
    assert stated["tables"]["sweep-speed"]["sources"][0] == "sweep/plain"


def test_rendering_twice_gives_the_same_bytes(written: Path) -> None:
    runs = read_runs([written / "runs" / name for name in ("sweep", "ladder")])
    again = render(compile_report(runs, "Twice"))
    assert sum(name.endswith(".svg") for name in again) >= 10
    for name, content in again.items():
        if name.endswith(".svg"):
            assert content == (written / "report" / name).read_bytes()
    assert render(compile_report(runs[1:], "Twice")) == render(compile_report(runs[1:], "Twice"))


def test_an_untouched_report_has_not_drifted(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--check", str(copied / "report")]) == 0
    assert "every file is what its receipts say" in capsys.readouterr().out


def test_an_edited_report_is_named(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copied / "report/report.md"
    path.write_text(path.read_text().replace("n 4", "n 5", 1))
    assert main(["report", "--check", str(copied / "report")]) == 1
    assert "report.md was changed after it was written" in capsys.readouterr().err


def test_an_edit_that_the_manifest_covers_up_is_found(copied: Path) -> None:
    path = copied / "report/report.md"
    path.write_text(path.read_text().replace("n 4", "n 5", 1))
    stated = read(copied)
    content = path.read_bytes()
    stated["files"]["report.md"] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change(copied / "report/manifest.json", **stated)
    assert check(copied / "report") == ["report.md is not what its receipts say"]


def test_a_changed_receipt_is_named_with_what_it_moves(copied: Path) -> None:
    change(copied / "runs/sweep/windows/opt-0.25.s0.p0.r0.json", decode_seconds=0.001)
    drifted = check(copied / "report")
    assert "receipt sweep/windows/opt-0.25.s0.p0.r0.json was changed" in drifted
    assert "figures/sweep-decode-alpha.svg is not what its receipts say" in drifted
    assert "figures/abab-depth.svg is not what its receipts say" not in drifted


def test_a_deleted_and_a_new_window_are_named(copied: Path) -> None:
    gone = copied / "runs/sweep/windows/plain.s1.p2.r0.json"
    gone.rename(gone.with_name("plain.s9.p2.r0.json"))
    drifted = check(copied / "report")
    assert "receipt sweep/windows/plain.s1.p2.r0.json is gone" in drifted
    assert "receipt sweep/windows/plain.s9.p2.r0.json is new" in drifted


def test_a_deleted_window_is_drawn_and_listed_by_the_next_report(copied: Path) -> None:
    (copied / "runs/abab/windows/exact.s1.p2.r0.json").unlink()
    make([copied / "runs/abab"], copied / "again", "Again")
    text = (copied / "again/report.md").read_text()
    assert "missing: exact, seed 1, prompt 2: no window." in text
    assert "7 of 8 (2)" in text


def test_a_file_or_a_run_that_is_gone_is_named(copied: Path) -> None:
    (copied / "report/figures/sweep-depth.svg").unlink()
    (copied / "runs/abab/run.json").unlink()
    drifted = check(copied / "report")
    assert "figures/sweep-depth.svg is gone" in drifted
    assert "receipt abab/run.json is gone" in drifted
    assert any("cannot be made again" in line for line in drifted)


def test_another_matplotlib_holds_pictures_to_their_digests(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "matplotlib_version", lambda: None)
    assert check(copied / "report") == []
    assert "here is none" in (manifests.drawn_elsewhere(copied / "report") or "")
    picture = copied / "report/figures/sweep-decode-alpha.svg"
    picture.write_bytes(picture.read_bytes().replace(b"#0072b2", b"#0072b3"))
    assert "figures/sweep-decode-alpha.svg was changed after it was written" in check(copied / "report")


def test_a_report_over_an_older_one_leaves_no_stale_picture(copied: Path) -> None:
    make([copied / "runs/abab"], copied / "report", "Less")
    assert {path.name for path in (copied / "report/figures").iterdir()} == {"abab-depth.svg", "abab-split.svg"}
    assert check(copied / "report") == []


def test_the_command_writes_and_says_what_is_wrong(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(whole / "runs/abab"), "--out", str(tmp_path / "out"), "--title", "One"]) == 0
    assert (tmp_path / "out/report.md").read_text().startswith("# One\n")
    assert main(["report", str(whole / "runs/abab")]) == 2
    assert "add --out FOLDER" in capsys.readouterr().err
    assert main(["report", "--check", str(tmp_path), "--out", "x"]) == 2
    assert "leave --out and --title away" in capsys.readouterr().err
    assert main(["report", "--check", str(tmp_path)]) == 2


def test_without_matplotlib_a_sentence_says_what_to_install(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", str(whole / "runs/abab"), "--out", str(tmp_path / "out")]) == 2
    assert "pip install 'mtrun[bench]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
