"""`mtrun eval tasks` and `mtrun eval score` as a person types them, on the pack that ships with mtrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mtrun.runtime.cli.main import main
from mtrun.runtime.evaluate.folder import ANSWERS, read_answers

LAW = ("profile=cascade-tokenv3", "cascade.alpha=0.95", "pack=nano")
LIMIT = 60
SCORE = """
import sys
from mtrun.runtime.cli.main import main
code = main(["eval", "score", *sys.argv[1:]])
assert not [name for name in sys.modules if name.split(".")[0] in ("mlx", "mlx_lm")], "scoring imported mlx"
sys.exit(code)
"""


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "mtrun.runtime.cli.main", "eval", *map(str, words)]


def tasks(out: Path, *words: object) -> list[str]:
    return command("tasks", *LAW, "--set", "nano", "--out", out, "--limit", LIMIT, *words)


def ran(words: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(home)}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)


def digests(path: Path) -> dict[tuple[str, int], str]:
    return {key: line["digest"] for key, line in read_answers(path).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An unbroken run of two seeds, and what it printed."""
    folder = tmp_path_factory.mktemp("eval")
    done = ran(tasks(folder / "whole", "--seeds", 2), folder)
    assert done.returncode == 0, done.stderr
    return folder / "whole", done.stdout


def test_nano_answers_under_the_law_and_the_table_says_how_well(whole: tuple[Path, str]) -> None:
    path, printed = whole
    summary = json.loads((path / "summary.json").read_text())
    assert (summary["total"]["answers"], summary["missing"], summary["cell"]) == (2 * LIMIT, 0, "tokenv3-0.95")
    assert 0.8 < summary["total"]["pass_at_1"] < 1
    assert summary["total"]["tokens_per_cycle"] > 1.5
    assert summary["total"]["intervals"]["pass_at_1"]["n"] == 2
    assert "nano: 60 tasks x 2 seeds under cascade rule=tokenv3 alpha=0.95 (lossy)" in printed
    assert [line.split()[0] for line in printed.split("\n")[2:8]] == ["all", *summary["by_family"]]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_run_that_was_ended_goes_on_to_the_same_answers(
    how: signal.Signals, code: int, whole: tuple[Path, str], tmp_path: Path
) -> None:
    out = tmp_path / "ended"
    words = tasks(out, "--seed-list", "0,1")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ})
    until = time.monotonic() + 120
    while not (out / ANSWERS).exists() and time.monotonic() < until and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(how)
    told = process.communicate(timeout=60)[1].decode()
    assert process.returncode == code, told
    kept = digests(out)
    assert 0 < len(kept) < 2 * LIMIT
    if how is signal.SIGINT:
        assert f"kept {len(kept)} of {2 * LIMIT} answers: the same command with --resume goes on" in told
    assert main(["eval", *words[4:]]) == 2  # without --resume, refused before anything is loaded
    done = ran([*words, "--resume"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert digests(out) == digests(whole[0])
    assert kept.items() <= digests(out).items()
    assert len(json.loads((out / "run.json").read_text())["sessions"]) == 2


def test_combinations_share_one_load_and_get_a_folder_each(whole: tuple[Path, str], tmp_path: Path) -> None:
    words = ("-m", "pack=nano", "profile=cascade-tokenv3", "cascade.alpha=0.75,0.95", "--set", "nano", "--limit", 12)
    done = ran(command("tasks", *words, "--out", tmp_path / "many"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "many").iterdir()) == ["tokenv3-0.75", "tokenv3-0.95"]
    found = digests(tmp_path / "many" / "tokenv3-0.95")
    assert len(found) == 12
    assert found.items() <= digests(whole[0]).items()  # a variant answers as a command of its own does
    run = json.loads((tmp_path / "many" / "tokenv3-0.75" / "run.json").read_text())
    assert run["command"][:5] == ["mtrun", "eval", "tasks", "pack=nano", "profile=cascade-tokenv3"]
    assert "cascade.alpha=0.75" in run["command"]


def test_combinations_that_cannot_share_are_refused_by_a_sentence(tmp_path: Path) -> None:
    words = ("-m", "pack=nano", "engine.threads=1,2", "--set", "nano", "--limit", 1, "--out", tmp_path / "many")
    done = ran(command("tasks", *words), tmp_path)
    assert done.returncode == 2
    assert "by a command of its own" in done.stderr
    assert done.stderr.count("mtrun: error") == 1


def test_scoring_needs_no_model(whole: tuple[Path, str]) -> None:
    path, printed = whole
    before = (path / "summary.json").read_text()
    done = subprocess.run([sys.executable, "-c", SCORE, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(printed)
    assert done.stdout.endswith("0 verdicts changed, 0 answers to tasks that the set does not hold\n")
    assert (path / "summary.json").read_text() == before


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--set", "nanno"), "there is no task set and no file nanno"),
        (("--set", "nano", "--seeds", "2", "--seed-list", "1"), "say the same"),
        (("--set", "nano", "--seed-list", "1,x"), "no list of numbers"),
        (("--set", "nano", "--seed-list", "1,1"), "repeat"),
        (("--set", "nano", "--seed-list", "-1"), "numbers from 0 on"),
        (("--set", "nano", "cascade.alpha=x"), "cascade.alpha"),
        ((), "--set"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    words: tuple[str, ...], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "tasks", "pack=nano", "--out", str(tmp_path / "run"), *words]) == 2
    told = capsys.readouterr().err
    assert part in told
    assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_combinations_of_one_name_are_refused(tmp_path: Path) -> None:
    words = ("-m", "pack=nano,nano", "profile=turbo")
    done = ran(command("tasks", *words, "--set", "nano", "--limit", 1, "--out", tmp_path / "many"), tmp_path)
    assert done.returncode == 2
    assert "two combinations are called exact" in done.stderr


def test_the_help_names_every_command_and_an_absent_one_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mtrun.runtime.cli import eval as evaluation

    assert main(["eval", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in evaluation.COMMANDS)
    monkeypatch.setitem(evaluation.COMMANDS, "text", "mtrun.runtime.cli.absent:text")
    assert main(["eval", "text"]) == 2
    assert "this build has no command eval text" in capsys.readouterr().err


def test_a_run_is_called_as_reports_should_call_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "tasks", *LAW, "--set", "nano", "--limit", "1", "--out"]
    assert main([*words, str(tmp_path / "bad"), "--cell", "../x"]) == 2
    assert "--cell '../x' is no name" in capsys.readouterr().err
    assert not (tmp_path / "bad").exists()
    done = ran(tasks(tmp_path / "run", "--limit", "1", "--cell", "mine"), tmp_path)
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert list(run["cells"]) == ["mine"]
    assert run["command"][-2:] == ["--cell", "mine"]
