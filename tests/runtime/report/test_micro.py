"""Micro runs in a report: a table of their own, beside others that they leave as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mtrun.runtime.bench.micro.folder import MicroFolder, MicroPlan
from mtrun.runtime.bench.micro.record import spread
from mtrun.runtime.cli.main import main
from mtrun.runtime.report.build import compile_report
from mtrun.runtime.report.document import Table, markdown
from mtrun.runtime.report.manifest import check, make
from mtrun.runtime.report.runs import read_runs, told
from support.measured_runs import change, write_bench


def case(name: str, rounds: list[float], **said: Any) -> dict[str, Any]:
    about = {"isa": "generic"} if name == "native" else {}
    told = {"group": "rows greedy", "name": name, "about": about, "load": None, "skipped": None, "error": None}
    return {**told, "iterations": 7 if rounds else None, **spread(rounds), "rounds": rounds, **said}


@pytest.fixture
def micro(tmp_path: Path) -> Path:
    """A run of two parts, one of which was not measured."""
    folder = MicroFolder.start(tmp_path / "micro", MicroPlan.of_parts(["rows", "compose"]), ["bench", "micro"])
    folder.begin({})
    cases = [case("numpy", [3e-6, 2e-6, 4e-6]), case("native", [1e-3, 3e-3])]
    cases += [case("mlx", [], skipped="it is not here"), case("other", [], error="AssertionError: off")]
    folder.keep("rows", cases)
    folder.close_session()
    return folder.path


def test_a_micro_run_is_a_table_with_its_losses(micro: Path) -> None:
    runs = read_runs([micro])
    report = compile_report(runs, "Parts")
    found = next(block for block in report.blocks if isinstance(block, Table) and block.name == "micro-micro")
    assert found.headings == (
        "part", "group", "case", "us/call: median (min-max), n", "IQR (us)", "calls/round", "with",
    )  # fmt: skip
    assert found.rows == (
        ("rows", "rows greedy", "numpy", "3.00 (2.00-4.00), n 3", "1.00", "7", "-"),
        ("rows", "rows greedy", "native", "2000 (1000-3000), n 2", "1000", "7", "isa generic"),
    )
    assert told(runs[0].lost) == [
        "skipped: rows, rows greedy, mlx: it is not here.",
        "dead: rows, rows greedy, other: AssertionError: off.",
        "missing: compose: not measured.",
    ]
    text = markdown(report.blocks)
    assert all(line in text for line in told(runs[0].lost))
    assert "Laws: speed and quality" not in text
    assert "every receipt was made by it" in text
    assert "unknown pack" not in text


def test_its_figures_can_be_quoted(micro: Path) -> None:
    found = compile_report(read_runs([micro]), "Parts").figures
    assert found["packs"] == {}
    assert found["runs"]["micro"]["lost"] == 3
    assert found["runs"]["micro"]["cases"] == {
        "rows": {
            "rows greedy": {
                "numpy": {"median": 3, "low": 2, "high": 4, "n": 3, "iqr": 1, "text": "3.00 (2.00-4.00), n 3"},
                "native": {
                    "median": 2000,
                    "low": 1000,
                    "high": 3000,
                    "n": 2,
                    "iqr": 1000,
                    "text": "2000 (1000-3000), n 2",
                },
            }
        }
    }


def test_other_runs_say_beside_it_what_they_say_alone(micro: Path, small: Path) -> None:
    alone, beside = (compile_report(read_runs(folders), "x") for folders in ([small], [small, micro]))
    tables = [{one.name: one for one in each.blocks if isinstance(one, Table)} for each in (alone, beside)]
    assert set(tables[1]) - set(tables[0]) == {"micro-micro"}
    assert all(tables[1][name].rows == one.rows for name, one in tables[0].items() if name not in ("runs", "run-speed"))
    assert alone.figures["packs"] == beside.figures["packs"]
    assert alone.figures["runs"]["run"] == beside.figures["runs"]["run"]
    assert alone.charts == beside.charts


def test_code_of_a_micro_run_that_is_not_the_others_is_named(micro: Path, tmp_path: Path) -> None:
    other = write_bench(tmp_path / "other", cells=("plain", "exact"), seeds=(0, 1))
    text = markdown(compile_report(read_runs([other, micro]), "x").blocks)
    assert "receipts made by other code are labelled" in text
    assert "- micro: other code: law exact" in text


def test_its_report_holds_and_names_drift(micro: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report"
    sweep = write_bench(tmp_path / "sweep", cells=("plain", "exact"), seeds=(0, 1))
    made = make([sweep, micro], out, "Both")
    run = next(one for one in made["runs"] if one["kind"] == "micro")
    assert set(run["receipts"]) == {"run.json", "micro.json"}
    assert made["tables"]["micro-micro"]["sources"] == ["micro/rows", "micro/compose"]
    assert main(["report", "--check", str(out)]) == 0
    capsys.readouterr()
    changed = [case("numpy", [3e-6, 2e-6, 5e-6]) | {"cell": "rows", "session": 0}]
    change(micro / "micro.json", cases=changed)
    drifted = check(out)
    assert "receipt micro/micro.json was changed" in drifted
    assert "report.md is not what its receipts say" in drifted


def test_cases_of_another_plan_are_refused(micro: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(micro / "micro.json", plan_sha256="0" * 64)
    assert main(["report", str(micro), "--out", str(tmp_path / "report")]) == 2
    assert "is of another plan than its run.json" in capsys.readouterr().err
