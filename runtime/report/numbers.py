"""figures.json: every figure of a report by pack, cell and name, for texts that quote one.

{schema, packs{pack: {cell: {law, decode_tok_s{median, low, high, n, text}, to_plain{value, low, high, n, text}, ...,
tasks{set: {...}}, text{...}, by_context{"2048": {...}}}}}, runs{run: {kind, pack, windows, lost, contended,
abab{...}}}}. A micro run is {kind, lost, cases{part: {group: {case: {median, low, high, n, iqr, text}}}}}, in
microseconds. `text` is the figure as the tables print it. Figures that were not measured are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mtrun.runtime.measure.stats import Band, Interval, interval_text
from mtrun.runtime.report.chart import band_text
from mtrun.runtime.report.figures import CellFigures
from mtrun.runtime.report.measured import Measured
from mtrun.runtime.report.paired import verdict
from mtrun.runtime.report.runs import Run
from mtrun.runtime.report.tables_micro import case_figures
from mtrun.runtime.report.tables_quality import Evaluated, first_of

SCHEMA = "mtrun.report.figures/1"
_BANDED = "decode_tok_s"  # described by its band, as the tables do; its mean is decode_tok_s_mean


def numbers(benches: Sequence[Measured], evals: Sequence[Evaluated], micros: Sequence[Run] = ()) -> dict[str, Any]:
    """The object of figures.json."""
    packs: dict[str, dict[str, Any]] = {}
    for pack in dict.fromkeys([*(one.run.pack for one in benches), *(one.run.pack for one in evals)]):
        own = [one for one in benches if one.run.pack == pack]
        cells: dict[str, Any] = {}
        for cell, one in first_of([one for one in own if one.run.kind == "sweep"]).items():
            cells[cell] = {"law": one.names.text[cell], **_cell(one.figures[cell])}
        for one in own:
            for level, found in one.by_level.items():
                for cell, figures in found.items():
                    place = cells.setdefault(cell, {"law": one.names.text[cell]}).setdefault("by_context", {})
                    place.setdefault(str(level), _cell(figures))
        _add_evals(cells, [one for one in evals if one.run.pack == pack])
        packs[pack] = cells
    runs = {one.run.name: _run(one) for one in benches} | {run.name: _micro(run) for run in micros}
    return {"schema": SCHEMA, "packs": packs, "runs": runs}


def _cell(found: CellFigures) -> dict[str, Any]:
    told: dict[str, Any] = {"windows": found.windows, "seeds": found.seeds}
    for name, interval in found.means.items():
        told[f"{name}_mean" if name == _BANDED else name] = _interval(interval, 3 if "rate" in name else 2)
    if _BANDED in found.bands:
        told[_BANDED] = _band(found.bands[_BANDED])
    ratios = {"to_plain": found.to_plain, "to_exact": found.to_exact}
    told |= {name: _interval(one, 2) for name, one in ratios.items() if one}
    if found.nll_gap:
        told["nll_gap"] = _interval(found.nll_gap, 3, "+")
    if found.depths:
        told["accepted_by_depth"] = [_interval(one, 3) for one in found.depths]
    if found.split:
        told["split_ms"] = dict(found.split)
    return told


def _add_evals(cells: dict[str, Any], evals: Sequence[Evaluated]) -> None:
    for one in evals:
        place = cells.setdefault(one.cell, {"law": one.law})
        if one.tasks:
            place.setdefault("tasks", {}).setdefault(one.set, _tasks(one))
        if one.text:
            told = {name: _interval(found, 3) for name, found in one.text.means.items()}
            gap = {"nll_gap": _interval(one.text.gap, 3, "+")} if one.text.gap else {}
            place.setdefault("text", told | gap)


def _tasks(one: Evaluated) -> dict[str, Any]:
    found = one.tasks
    assert found is not None, "only a run of tasks has task figures"
    shares = {"strict": found.strict, "completed": found.completed}
    told: dict[str, Any] = {name: _interval(share, 3) for name, share in shares.items() if share}
    told |= {"answers": found.answers, "tasks": found.tasks, "seeds": found.seeds, "truncated": found.truncated}
    told |= {"mean_tokens": found.mean_tokens, "most_tokens": found.most_tokens}
    return told | {"families": {name: _interval(share, 3) for name, (share, _) in found.families.items()}}


def _run(one: Measured) -> dict[str, Any]:
    told = {
        "kind": one.run.kind,
        "pack": one.run.pack,
        "windows": sum(found.windows for found in one.figures.values()),
        "lost": len(one.run.lost),
        "contended": one.run.contended,
    }
    found = verdict(one.run) if one.run.kind == "abab" else None
    if found is None:
        return told
    compared = found.found
    sides = {"a": found.a, "b": found.b, "ratio": _interval(compared.ratio, 3)}
    return told | {"abab": {**sides, "p": compared.sign_flip.p, "margin": compared.margin, "verdict": compared.verdict}}


def _micro(run: Run) -> dict[str, Any]:
    cases: dict[str, Any] = {}
    for case in run.cases:
        if case["n"]:
            group = cases.setdefault(case["cell"], {}).setdefault(case["group"], {})
            group[case["name"]] = case_figures(case)
    return {"kind": run.kind, "lost": len(run.lost), "cases": cases}


def _interval(found: Interval, digits: int, sign: str = "") -> Mapping[str, Any]:
    return asdict(found) | {"text": interval_text(found, digits, sign)}


def _band(found: Band) -> Mapping[str, Any]:
    return asdict(found) | {"text": band_text(found)}
