"""What a report says, and that nothing asked for leaves it silently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure.store import keep_setting
from mtrun.runtime.report.build import compile_report
from mtrun.runtime.report.document import Table
from mtrun.runtime.report.drawing import draw
from mtrun.runtime.report.runs import Run, read_runs, told
from support.measured_runs import change, setting_of, write_bench


def rows(report: object, name: str) -> dict[str, dict[str, str]]:
    """A table's rows by their first column."""
    found = next(block for block in report.blocks if isinstance(block, Table) and block.name == name)  # type: ignore[attr-defined]
    return {row[0]: dict(zip(found.headings, row, strict=True)) for row in found.rows}


def runs_of(root: Path, *names: str) -> tuple[Run, ...]:
    return read_runs([root / "runs" / name for name in names])


def test_every_window_that_does_not_count_is_listed_with_its_reason(written: Path) -> None:
    sweep, ladder = runs_of(written, "sweep", "ladder")
    assert set(told(sweep.lost)) == {
        "dead: exact, seed 0, prompt 1: RuntimeError: it broke.",
        "refused: plain, seed 3, prompt 1: the verdict of cpu_layer changed.",
        "missing: opt-0, 8 windows (prompts of seed 0: 0, 1; seed 1: 2, 3; seed 2: 0, 4; seed 3: 1, 2): no window.",
        "missing: opt-0.25, seed 1, prompt 2: no window.",
    }
    assert [one.what for one in ladder.lost] == ["over the memory cap"] * 4
    page = (written / "report/report.md").read_text()
    for line in (*told(sweep.lost), *told(ladder.lost)):
        assert f"- {line}" in page


def test_windows_that_no_cell_has_are_expected_from_the_plan(small: Path) -> None:
    for path in small.glob("windows/*.s1.p*.r0.json"):
        path.unlink()
    (run,) = read_runs([small])
    assert [line for line in told(run.lost) if "plain" in line] == [
        "missing: plain, 2 windows (prompts of seed 1: 2, 3): no window."
    ]
    assert len(run.lost) == 6


def test_charts_draw_what_is_missing_and_list_it(written: Path) -> None:
    report = compile_report(runs_of(written, "sweep", "ladder"), "x")
    charts = {chart.name: chart for chart in report.charts}
    decode = charts["sweep-decode-alpha"]
    gaps = {(one.label, gap.x, gap.text) for one in decode.series for gap in one.gaps}
    assert gaps == {("cascade opt", 0.0, "missing"), ("cascade opt", 0.25, "1 of 8 missing")}
    assert "missing: opt-0.25, seed 1, prompt 2: no window." in decode.lost
    capped = charts["ladder-decode-context"]
    assert ("exact", 2048.0, "over the memory cap") in {(s.label, g.x, g.text) for s in capped.series for g in s.gaps}
    whole = [one for one in charts["sweep-split"].stacks if one.parts is None]
    assert [one.label for one in whole] == ["cascade opt alpha 0"]
    with_gap = draw(decode)
    without = draw(compile_report(runs_of(written, "abab"), "x").charts[0])
    assert with_gap.count(b"missing (listed)") == 1  # the legend's comment; the crosses are paths
    assert b"missing (listed)" not in without


def test_alpha_is_read_from_the_setting_and_not_from_the_name(small: Path) -> None:
    setting = setting_of("opt-0.25", "smollm2")
    setting["law"] = {**setting["law"], "parameters": {"alpha": 0.4}}
    run = json.loads((small / "run.json").read_text())
    run["cells"]["opt-0.25"]["setting"] = keep_setting(small, setting)
    change(small / "run.json", **run)
    report = compile_report(read_runs([small]), "x")
    assert [point.x for point in report.charts[0].series[0].points] == [0.4, 0.5]
    assert "alpha 0.4" in rows(report, "run-speed")["opt-0.25"]["law"]


def test_a_ratio_pairs_windows_by_seed_and_prompt(tmp_path: Path) -> None:
    """All cells of a prompt share its speed; without pairing, that would be in the interval."""
    folder = write_bench(tmp_path / "run", cells=("plain", "exact"), seeds=range(6))
    for path in (folder / "windows").glob("exact.s*"):
        plain = json.loads((folder / "windows" / path.name.replace("exact", "plain")).read_text())
        change(path, decode_seconds=plain["decode_seconds"] / 2)
    figures = compile_report(read_runs([folder]), "x").figures["packs"]["smollm2"]
    assert figures["exact"]["to_plain"]["value"] == pytest.approx(2)
    assert figures["exact"]["to_plain"]["high"] - figures["exact"]["to_plain"]["low"] < 1e-9
    assert figures["exact"]["decode_tok_s"]["high"] - figures["exact"]["decode_tok_s"]["low"] > 1


def test_the_quality_table_joins_bench_and_eval_runs(written: Path) -> None:
    report = compile_report(runs_of(written, "sweep", "tasks-exact", "tasks-plain", "text-plain", "text-exact"), "x")
    joined = rows(report, "smollm2-laws")
    wanted = {"tokens/cycle", "draft acceptance", "deferral rate", "kept-draft rate", "mean D_TV", "tok/s"}
    assert wanted | {"nano: strict pass@1", "nano: completed pass@1", "NLL gap (texts)"} <= joined["exact"].keys()
    assert joined["opt-0"]["tok/s"] == "missing"
    answers = [json.loads(line) for line in (written / "runs/tasks-exact/answers.jsonl").read_text().splitlines()]
    right = sum(one["ok"] and not one["truncated"] for one in answers)
    done = sum(not one["truncated"] for one in answers)
    assert joined["exact"]["nano: strict pass@1"].startswith(f"{right / len(answers):.3f} [")
    assert joined["exact"]["nano: completed pass@1"].startswith(f"{right / done:.3f} [")
    assert joined["exact"]["NLL gap (texts)"].startswith("+")
    assert joined["plain"]["NLL gap (texts)"] == "-"


def test_unequal_n_is_flagged_and_a_contended_window_counted(small: Path) -> None:
    (small / "windows/plain.s0.p0.r0.json").unlink()
    change(small / "windows/plain.s0.p1.r0.json", decode_cpu_seconds=1e-3)
    (run,) = read_runs([small])
    assert run.contended == 1
    text = " ".join(line for b in compile_report([run], "x").blocks for line in getattr(b, "lines", ()))
    assert "unequal n: plain 3, opt-0.25 4, opt-0.5 4" in text
    assert "contended: 1 windows" in text


def test_receipts_of_other_code_are_labelled(tmp_path: Path) -> None:
    first = write_bench(tmp_path / "first", cells=("plain", "opt-0.25"), seeds=(0, 1))
    other = write_bench(tmp_path / "other", cells=("opt-0.25",), seeds=(0, 1), law_code_sha256="f" * 64)
    one, two = (rows(compile_report(read_runs([first, other]), "x"), f"{name}-speed") for name in ("first", "other"))
    assert two["opt-0.25"]["code"] == f"other code: law cascade {'f' * 12}"
    assert "code" not in one["opt-0.25"]


def test_a_window_whose_ids_were_changed_does_not_count(small: Path) -> None:
    change(small / "windows/plain.s0.p0.r0.json", ids=[1] * 64)
    (run,) = read_runs([small])
    assert [one.reason for one in run.lost] == ["its token ids do not have the digest it states"]


def test_interleaved_rounds_have_a_verdict(written: Path) -> None:
    report = compile_report(runs_of(written, "abab"), "x")
    found = report.figures["runs"]["abab"]["abab"]
    assert (found["a"], found["b"]) == ("exact", "tokenv3-0.95")
    assert found["p"] == pytest.approx(2 / 2**6)  # six seeds of one sign
    assert found["verdict"] == "different: b is faster"
    assert len(rows(report, "abab-pairs")) == 6


def test_shadows_stand_beside_the_measured_rates_with_their_validity(written: Path) -> None:
    report = compile_report(runs_of(written, "sweep"), "x")
    chart = next(chart for chart in report.charts if chart.name == "sweep-shadow")
    labels = {one.label: one for one in chart.series}
    assert labels["cascade opt, predicted (rows of exact)"].hollow
    assert [point.x for point in labels["cascade opt, measured"].points] == [0.25]
    assert "on prefixes that the deciding law visited, and there alone" in chart.caption


def test_a_ladder_says_what_is_over_the_cap(written: Path) -> None:
    report = compile_report(runs_of(written, "ladder"), "x")
    table = next(block for block in report.blocks if isinstance(block, Table) and block.name == "ladder-ladder")
    row = next(dict(zip(table.headings, row, strict=True)) for row in table.rows if row[:2] == ("2k", "exact"))
    assert row["not measured"].startswith("over the memory cap: not measured: 2048 tokens of prompt are estimated at")
    assert row["decode tok/s: median (min-max), n"] == "-"


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"run\.json cannot be read"):
        read_runs([tmp_path])
    (tmp_path / "run.json").write_text('{"schema": "something else"}')
    with pytest.raises(ConfigurationError, match="is no run of mtrun bench or mtrun eval"):
        read_runs([tmp_path])
