"""`mtrun bench --protocol micro`: every case does what it says, and a run keeps each part whole or not at all.

Nothing here asserts a speed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import signal
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mtrun.runtime.acceptance.cascade import RULES
from mtrun.runtime.acceptance.table import LAWS
from mtrun.runtime.bench import preflight
from mtrun.runtime.bench.micro import runner
from mtrun.runtime.bench.micro.case import PARTS, Case, UnavailableError, cases_of
from mtrun.runtime.bench.micro.folder import MicroFolder
from mtrun.runtime.bench.micro.kernels import WIDTHS
from mtrun.runtime.bench.micro.record import FIGURES, spread
from mtrun.runtime.bench.micro.runner import TimingError, time_apart
from mtrun.runtime.cli import main as cli
from mtrun.runtime.environment import child_environment

QUICK = ("--rounds", "2", "--seconds", "0.001")
CASES = [(part, case) for part in PARTS for case in cases_of(part)]
PATIENCE = 120.0  # seconds
# The timing process, with a check that nothing passes and a native library that is not there.
SPOILED = """
import json, sys
from pathlib import Path
from mtrun.kernels.rows import RowFilter
from mtrun.runtime.bench.micro import rows
from mtrun.runtime.bench.micro.case import UnavailableError
from mtrun.runtime.bench.micro.timed import time_part
def absent():
    raise UnavailableError("no such library")
def wrong(how, found):
    raise AssertionError("off by one")
rows.native, rows._check = absent, wrong
rows.filters = lambda: {"greedy": RowFilter(0.0)}
Path(sys.argv[2]).write_text(json.dumps(time_part("rows", Path(sys.argv[1]), 2, 0.001, 0.001)))
"""
timer = pytest.mark.skipif(importlib.util.find_spec("pytest_benchmark") is None, reason="needs pytest-benchmark")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    path: Path

    @property
    def run(self) -> dict[str, Any]:
        return json.loads((self.path / "run.json").read_text())

    @property
    def micro(self) -> dict[str, Any]:
        return json.loads((self.path / "micro.json").read_text())


def micro(folder: Path, *words: str) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(["bench", "--protocol", "micro", "--out", str(folder), *words])
    return Ran(code, out.getvalue(), err.getvalue(), folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Every part, quickly."""
    return micro(tmp_path_factory.mktemp("micro") / "run", "--busy-ok", *QUICK)


def answer(name: str = "numpy", **said: Any) -> dict[str, Any]:
    """A case as the timing process answers it."""
    told = {"group": "g", "name": name, "about": {}, "load": None, "skipped": None, "error": None, "iterations": 3}
    rounds = said.get("rounds", [2e-6, 1e-6, 4e-6])
    return {**told, **spread(rounds), "rounds": rounds, **said}


# -- the cases -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("part", "case"), CASES, ids=[f"{part}-{case.group}-{case.name}" for part, case in CASES])
def test_a_case_answers_rightly_twice(part: str, case: Case) -> None:
    try:
        timed = case.setup()
    except UnavailableError as error:
        pytest.skip(str(error))
    for _ in range(2):
        timed.check(timed.call())


def test_every_law_every_rule_and_every_way_are_among_the_cases() -> None:
    names = Counter((part, case.group, case.name) for part, case in CASES)
    assert max(names.values()) == 1
    laws = {case.name.split(",")[0] for part, case in CASES if part == "laws"}
    assert laws == {*LAWS} - {"cascade"} | {f"cascade {rule}" for rule in RULES} | {"exact block"}
    ways = {"numpy", "mlx", "native"}
    for part in ("rows", "kernels"):
        assert {case.name for one, case in CASES if one == part} == ways
    assert sum(case.name == "native" for part, case in CASES if part == "kernels") == 3 * len(WIDTHS)


def test_a_wrong_answer_is_told() -> None:
    right = {part: next(case for one, case in CASES if one == part).setup() for part in PARTS}
    judged = right["laws"].call()
    with pytest.raises(AssertionError, match="it keeps 9 of 3 drafts"):
        right["laws"].check(type(judged)(9, judged.deferred, judged.replacement))
    rows = right["rows"].call()
    with pytest.raises(AssertionError, match="not those of the reference"):
        right["rows"].check(type(rows)(rows.ids, rows.probs[::-1]))
    product = next(case for part, case in CASES if part == "kernels" and case.group.startswith("product")).setup()
    with pytest.raises(AssertionError, match="off by"):
        product.check(product.call() * 1.01)


def test_spread_describes_rounds() -> None:
    rounds = [5e-6, 1e-6, 2e-6, 4e-6, 3e-6]
    assert spread(rounds) == {"n": 5, "median": 3e-6, "min": 1e-6, "max": 5e-6, "iqr": 2e-6}
    assert spread([7e-6]) == {"n": 1, "median": 7e-6, "min": 7e-6, "max": 7e-6, "iqr": 0.0}
    assert spread([]) == {"n": 0, "median": None, "min": None, "max": None, "iqr": None}


# -- a run -----------------------------------------------------------------------------------------------------------
@timer
def test_a_run_holds_every_case_with_its_rounds(whole: Ran) -> None:
    assert whole.code == 0, whole.err
    found = {(case["cell"], case["group"], case["name"]): case for case in whole.micro["cases"]}
    assert list(found) == [(part, case.group, case.name) for part, case in CASES]
    for (part, *names), case in found.items():
        assert case["error"] is None, (part, names)
        if case["skipped"] is None:
            assert len(case["rounds"]) == case["n"] >= 2
            assert case["iterations"] >= 1
            assert case["median"] == pytest.approx(statistics.median(case["rounds"]), rel=1e-6)
            assert 0 < case["min"] <= case["median"] <= case["max"]
        assert {name: case[name] for name in FIGURES} == spread(case["rounds"])
    assert {case["skipped"] for case in found.values()} <= {None, "the native library is not built here"}


@timer
def test_a_run_says_where_and_by_which_code_it_was_made(whole: Ran) -> None:
    run = whole.run
    assert (run["schema"], run["kind"], run["missing"]) == ("mtrun.bench.run/1", "micro", [])
    assert run["plan"]["rounds"] == 2
    assert list(run["cells"]) == list(PARTS)
    (session,) = run["sessions"]
    assert session["machine"]["cores"] >= 1
    assert session["versions"]["pytest-benchmark"]
    assert len(session["code"]["source_sha256"]) == 64
    assert set(session["laws_code_sha256"]) == set(LAWS)
    assert session["preflight"]["load"] == pytest.approx(session["load_before"], abs=5)
    assert session["ended"] > session["started"]
    assert session["load_after"] is not None or session["load_before"] is None


@timer
def test_the_table_has_a_line_a_case(whole: Ran) -> None:
    case = whole.micro["cases"][0]
    line = next(line for line in whole.out.splitlines() if line.startswith(case["group"]))
    assert case["name"] in line
    assert line.endswith(f"  {case['n']}")
    assert "only describe, and are not compared" in whole.out
    assert sum(
        line.startswith(("judge", "rows", "forward", "product", "compose")) for line in whole.out.splitlines()
    ) == sum(case["n"] > 0 for case in whole.micro["cases"])


@timer
def test_a_receipt_says_that_there_are_no_windows_and_verifies(whole: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["receipt", "verify", str(whole.path)]) == 0
    assert f"{len(CASES)} cases: sound" in capsys.readouterr().out
    for path in (whole.path, whole.path / "micro.json", whole.path / "run.json"):
        assert cli.main(["receipt", "show", str(path)]) == 2
        assert "is a micro run and has no windows" in capsys.readouterr().err


@timer
def test_ctrl_c_keeps_whole_parts_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["--cells", "compose,laws", "--rounds", "2", "--seconds", "60", "--busy-ok", "--out", str(out)]
    command = [sys.executable, "-m", "mtrun.runtime.cli.main", "bench", "--protocol", "micro", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any(line.startswith("1/2 laws") for line in iter(process.stderr.readline, "")), "nothing was begun"
    process.send_signal(signal.SIGINT)  # the first part would take minutes
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert said == f"mtrun: interrupted: {out} holds the parts that were measured, and --resume completes it\n"
    assert [path.name for path in out.iterdir()] == ["run.json"]
    run = json.loads((out / "run.json").read_text())
    assert run["sessions"][0]["ended"] is not None
    assert [one["cell"] for one in run["missing"]] == ["laws", "compose"]


# -- a folder that is there, with a timing process that only answers -------------------------------------------------
@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Parts that were to be timed, answered at once."""
    parts: list[str] = []

    def time_at_once(part: str, plan: Any) -> list[dict[str, Any]]:
        parts.append(part)
        return [answer(), answer("mlx", rounds=[], skipped="it is not here", iterations=None)]

    monkeypatch.setattr(runner, "time_apart", time_at_once)
    monkeypatch.setattr(runner, "check_timer", lambda: None)
    return parts


@pytest.mark.usefixtures("asked")
def test_an_occupied_folder_is_refused(tmp_path: Path) -> None:
    assert micro(tmp_path / "run", "--busy-ok").code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    again = micro(tmp_path / "run", "--busy-ok")
    assert again.code == 2
    assert "holds a run: add --resume to complete it" in again.err
    other = micro(tmp_path / "run", "--busy-ok", "--resume", "--rounds", "9")
    assert other.code == 2
    assert "was made with other options" in other.err
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_resume_times_only_what_is_lacking(tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    answering = runner.time_apart

    def dies(part: str, plan: Any) -> list[dict[str, Any]]:
        if part == "rows":
            raise TimingError("its process ended with -11")
        return answering(part, plan)

    monkeypatch.setattr(runner, "time_apart", dies)
    first = micro(tmp_path / "run", "--busy-ok")
    assert first.code == 1
    assert "missing: rows: its process ended with -11" in first.out
    assert first.run["missing"] == [{"cell": "rows", "reason": "its process ended with -11"}]
    monkeypatch.setattr(runner, "time_apart", answering)
    asked.clear()
    second = micro(tmp_path / "run", "--busy-ok", "--resume")
    assert (second.code, asked, second.run["missing"]) == (0, ["rows"], [])
    assert second.run["cells"]["rows"]["skipped"] is None
    assert [case["cell"] for case in second.micro["cases"][::2]] == list(PARTS)
    assert {case["cell"]: case["session"] for case in second.micro["cases"]} == {**dict.fromkeys(PARTS, 0), "rows": 1}
    assert "skipped: g, mlx: it is not here" in second.out
    assert "already" in micro(tmp_path / "run", "--busy-ok", "--resume").err


@pytest.mark.usefixtures("asked")
def test_resume_refuses_other_code(tmp_path: Path) -> None:
    assert micro(tmp_path / "run", "--busy-ok").code == 0
    path = tmp_path / "run" / "run.json"
    run = json.loads(path.read_text())
    run["sessions"][0]["code"]["source_sha256"] = "0" * 64
    path.write_text(json.dumps(run))
    (tmp_path / "run" / "micro.json").unlink()
    found = micro(tmp_path / "run", "--busy-ok", "--resume")
    assert found.code == 2
    assert "was measured with other code" in found.err


def test_a_failed_case_is_kept_told_and_ends_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = answer("mlx", rounds=[], error="AssertionError: off by 2", iterations=None)
    monkeypatch.setattr(runner, "check_timer", lambda: None)
    monkeypatch.setattr(runner, "time_apart", lambda part, plan: [answer(), failed])
    found = micro(tmp_path / "run", "--busy-ok", "--cells", "rows")
    assert found.code == 1
    assert "failed: g, mlx: AssertionError: off by 2" in found.out
    assert found.micro["cases"][1]["error"] == "AssertionError: off by 2"


@pytest.mark.usefixtures("asked")
def test_a_changed_figure_a_lost_case_and_a_lost_part_do_not_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = micro(tmp_path / "run", "--busy-ok").path / "micro.json"
    sound = json.loads(path.read_text())

    def verified(cases: list[dict[str, Any]]) -> str:
        path.write_text(json.dumps(sound | {"cases": cases}))
        code = cli.main(["receipt", "verify", str(tmp_path / "run")])
        out = capsys.readouterr().out
        assert code == (1 if "micro.json" in out else 0)
        return out

    first, *rest = sound["cases"]
    assert "sound" in verified([first, *rest])
    assert "g, numpy: median is 1e-06, and its rounds say 2e-06" in verified([{**first, "median": 1e-6}, *rest])
    assert "n is 3, and its rounds say 2" in verified([{**first, "rounds": first["rounds"][:2]}, *rest])
    assert "laws, g, numpy is there 2 times" in verified([first, first, *rest])
    assert "compose is neither there nor listed" in verified([first, *rest][:-2])
    assert "its part speed is none of the run's" in verified([{**first, "cell": "speed"}, *rest])
    assert "cases[0].median is 'fast', not a whole number or a number" in verified([{**first, "median": "fast"}, *rest])
    path.write_text(json.dumps(sound | {"plan_sha256": "0" * 64}))
    assert cli.main(["receipt", "verify", str(tmp_path / "run")]) == 1
    assert "is of another plan" in capsys.readouterr().out


# -- what is refused before anything is written ------------------------------------------------------------------------
def test_a_busy_machine_is_refused(tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    busy = {"in_use": 1.9, "load": [8.0, 8.0, 8.0], "cores": 2, "on_battery": None, "throttled": None}
    monkeypatch.setattr(preflight, "look", lambda: busy)
    found = micro(tmp_path / "run")
    assert (found.code, asked) == (1, [])
    assert "add --busy-ok" in found.err
    assert not (tmp_path / "run").exists()


def test_without_pytest_benchmark_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "NEEDED", ("pytest", "no_such_timer"))
    found = micro(tmp_path / "run", "--busy-ok")
    assert found.code == 2
    assert found.err == "mtrun: error: micro is timed by pytest-benchmark: pip install 'pytest-benchmark>=4,<6'\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["pack=nano"], "none of them reads pack=nano"),
        (["--tokens", "8"], "none of them reads --tokens"),
        (["-m"], "none of them reads --multirun"),
        (["--cells", "exact"], "micro has no part 'exact': --cells names some of laws, rows, kernels, compose"),
    ],
)
def test_words_of_other_protocols_are_refused(words: list[str], part: str, tmp_path: Path) -> None:
    found = micro(tmp_path / "run", "--busy-ok", *words)
    assert found.code == 2
    assert part in found.err
    assert found.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


# -- the process that times ------------------------------------------------------------------------------------------
@timer
def test_a_process_that_ends_without_an_answer_says_its_last_line() -> None:
    with pytest.raises(TimingError, match=r"^its process ended with 1 \(RuntimeError: pytest ended with"):
        time_apart("absent", {"rounds": 1, "seconds": 0.001, "round_seconds": 0.001})


@timer
def test_a_case_that_answers_wrongly_has_no_figures_and_says_why(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    command = [sys.executable, "-c", SPOILED, str(work), str(tmp_path / "told.json")]
    done = subprocess.run(
        command, cwd=work, env=child_environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = {case["name"]: case for case in json.loads((tmp_path / "told.json").read_text())}
    for name in ("numpy", "mlx"):
        assert told[name]["error"] == "AssertionError: off by one"
    assert (told["native"]["error"], told["native"]["skipped"]) == (None, "no such library")
    for case in told.values():
        assert (case["n"], case["rounds"], case["median"], case["iterations"]) == (0, [], None, None)


def test_a_micro_folder_reads_what_it_kept(tmp_path: Path, asked: list[str]) -> None:
    micro(tmp_path / "run", "--busy-ok", "--cells", "compose,laws")
    assert asked == ["laws", "compose"]
    folder = MicroFolder.read(tmp_path / "run")
    assert folder.parts_lacking() == []
    assert len(folder.cases()) == 4
