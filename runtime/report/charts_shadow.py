"""What shadow laws predicted while another law decided, beside what a sweep measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtrun.runtime.acceptance.counts import pooled
from mtrun.runtime.measure.stats import Interval, t_interval
from mtrun.runtime.report.chart import BARS, SHARE, Chart, Point, Series
from mtrun.runtime.report.charts_alpha import DODGE, by_rule, rule_look
from mtrun.runtime.report.laws import CASCADE, CellLaw
from mtrun.runtime.report.measured import Measured
from mtrun.runtime.report.runs import Window

VALIDITY = "A prediction is valid position by position, on prefixes that the deciding law visited, and there alone."


@dataclass(frozen=True)
class Predicted:
    """What one shadow law would have kept of the drafts that `deciding` reached, beside the cell that measured it."""

    deciding: str
    law: CellLaw
    keep: Interval  # kept-draft rate over all visited positions
    first: Interval | None  # the same at depth 1, where every position stands after committed text
    cell: str | None  # the measured cell of the same law
    measured: Interval | None
    measured_first: Interval | None


def predictions(one: Measured) -> list[Predicted]:
    """Every shadow law of every cell whose windows had shadows, cells and laws in their order."""
    found = []
    for cell in one.run.cells:
        own = one.run.counted[cell]
        told = [own[slot] for slot in sorted(own) if own[slot].get("shadow")]
        for key in sorted({_key(law) for window in told for law in window["shadow"].values()}):
            if (entry := _predicted(one, cell, told, key)) is not None:
                found.append(entry)
    return found


def shadow_chart(one: Measured) -> list[Chart]:
    """Predicted keep over alpha beside the measured rate: of the exact law's rows, else of the first with shadows."""
    found = [entry for entry in predictions(one) if entry.law.law == CASCADE]
    if not found:
        return []
    had = [entry.deciding for entry in found]
    deciding = one.exact if one.exact in had else had[0]
    own = [entry for entry in found if entry.deciding == deciding]
    rules = sorted({entry.law.rule or "" for entry in own}, key=rule_look)
    measured = {rule: cells for rule, cells in by_rule(one).items() if rule in rules}
    series = [_predicted_series(rule, own, one.names.short[deciding]) for rule in rules]
    series += [_measured_series(one, rule, cells) for rule, cells in measured.items()]
    shown = list(dict.fromkeys([deciding, *(cell for cells in measured.values() for cell in cells.values())]))
    return [
        Chart(
            f"{one.slug}-shadow",
            f"Kept-draft rate, predicted and measured, {one.title}",
            f"Predicted from rows of {one.names.short[deciding]}. {VALIDITY} {BARS}",
            "alpha",
            "kept-draft rate (accepted / positions)",
            tuple(series),
            within=SHARE,
            lost=one.lost(*shown),
            sources=one.source(*shown),
        )
    ]


def _predicted_series(rule: str, own: Sequence[Predicted], deciding: str) -> Series:
    points = sorted((entry.law.alpha or 0.0, entry.keep) for entry in own if entry.law.rule == rule)
    label = f"cascade {rule}, predicted (rows of {deciding})"
    return Series(label, rule_look(rule), tuple(Point(x, keep) for x, keep in points), hollow=True, dodge=-DODGE)


def _measured_series(one: Measured, rule: str, cells: Mapping[float, str]) -> Series:
    rates = {alpha: one.figures[cell].means.get("kept_draft_rate") for alpha, cell in cells.items()}
    points = tuple(Point(alpha, rate) for alpha, rate in rates.items() if rate is not None)
    gaps = tuple(gap for alpha, cell in cells.items() for gap in one.gaps(cell, alpha))
    return Series(f"cascade {rule}, measured", rule_look(rule), points, gaps, dodge=DODGE)


def _key(law: Mapping[str, Any]) -> str:
    return json.dumps([law["law"], law["rule"], law["parameters"]], sort_keys=True)


def _predicted(one: Measured, cell: str, told: Sequence[Window], key: str) -> Predicted | None:
    by_seed: dict[int, list[Mapping[str, Any]]] = {}
    for window in told:
        own = [entry for entry in window["shadow"].values() if _key(entry) == key]
        by_seed.setdefault(window["seed"], []).extend(own)
    keep = t_interval(_shares([[(one["positions"], one["expected_keep"]) for one in own] for own in by_seed.values()]))
    if keep is None:
        return None
    firsts = [[_first(entry) for entry in own if entry.get("per_depth")] for own in by_seed.values()]
    name, rule, parameters = json.loads(key)
    law = CellLaw(name, rule, parameters, 0, False)
    same = next((other for other, known in one.names.laws.items() if _same(known, law)), None)
    rate = one.figures[same].means.get("kept_draft_rate") if same else None
    return Predicted(cell, law, keep, t_interval(_shares(firsts)), same, rate, _measured_first(one, same))


def _same(known: CellLaw, law: CellLaw) -> bool:
    return (known.law, known.rule, dict(known.parameters)) == (law.law, law.rule, dict(law.parameters))


def _first(entry: Mapping[str, Any]) -> tuple[int, float]:
    return entry["per_depth"][0]["positions"], entry["per_depth"][0]["expected_keep"]


def _shares(groups: Sequence[Sequence[tuple[int, float]]]) -> list[float]:
    """Kept over visited of each seed, from sums."""
    sums = [(sum(visited for visited, _ in group), sum(kept for _, kept in group)) for group in groups]
    return [kept / visited for visited, kept in sums if visited]


def _measured_first(one: Measured, cell: str | None) -> Interval | None:
    if cell is None:
        return None
    groups: dict[int, list[Window]] = {}
    for slot, window in one.run.counted[cell].items():
        groups.setdefault(slot.seed, []).append(window)
    totals = [pooled(group) for _, group in sorted(groups.items())]
    known = [total for total in totals if total.reached_by_depth]
    return t_interval([total.accepted_by_depth[0] / total.reached_by_depth[0] for total in known])
