"""Charts over a cascade's alpha: the strength is read from each setting, the other laws are reference lines."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from mtrun.runtime.report.chart import BARS, PALE, SHARE, Chart, Point, Reference, Series, has_points
from mtrun.runtime.report.laws import CASCADE, EXACT, PLAIN, REFERENCE_THRESHOLD, TYPICAL
from mtrun.runtime.report.measured import Measured

RULES = ("opt", "tokenv3", "tokenv1", "tokenv2")  # in the order of their looks, so that a rule looks alike everywhere
DODGE = 0.008  # of alpha, between two rules
_REFERENCE_LOOKS = {PLAIN: 4, EXACT: 2, TYPICAL: 3}
_ENDS = "The interval of a reference line stands at its right end."
_STRENGTH = "The same alpha means different strengths under two rules; alpha 0 is on."


@dataclass(frozen=True)
class Quantity:
    """What a chart over alpha shows."""

    figure: str  # key of CellFigures.means
    slug: str
    title: str
    y_label: str
    digits: int
    within: tuple[float, float]  # what it can be
    band: bool = False  # whether windows are described beside the interval


QUANTITIES = (
    Quantity("decode_tok_s", "decode", "Decode speed over alpha", "decode tok/s", 1, (0, math.inf), True),
    Quantity(
        "kept_draft_rate", "kept", "Kept-draft rate over alpha", "kept-draft rate (accepted / positions)", 3, SHARE
    ),
    Quantity(
        "tokens_per_cycle", "tokens-per-cycle", "Tokens per cycle over alpha", "tokens per cycle", 2, (1, math.inf)
    ),
    Quantity("deferral_rate", "deferral", "Deferral rate over alpha", "deferral rate (deferred / positions)", 3, SHARE),
)


def alpha_charts(one: Measured) -> list[Chart]:
    """A chart for each quantity of a sweep that has cascade cells."""
    families = by_rule(one)
    cells = [cell for own in families.values() for cell in own.values()]
    references = _references(one)
    absent = [cell for cell in one.run.cells if one.law(cell) is None]
    absent += [cell for cell in references.values() if not one.figures[cell].windows]
    charts = []
    for quantity in QUANTITIES:
        series = tuple(_series(one, rule, own, quantity) for rule, own in families.items())
        if not has_points(series):
            continue
        series += tuple(_absent(one, cell) for cell in absent)
        lines = tuple(
            Reference(one.names.short[cell], _REFERENCE_LOOKS[law], found)
            for law, cell in references.items()
            if (found := one.figures[cell].means.get(quantity.figure)) is not None
        )
        shown = [*cells, *references.values(), *absent]
        charts.append(
            Chart(
                f"{one.slug}-{quantity.slug}-alpha",
                f"{quantity.title}, {one.title}",
                " ".join([BARS, *([PALE] if quantity.band else []), _ENDS, _STRENGTH]),
                "alpha",
                quantity.y_label,
                series,
                lines,
                within=quantity.within,
                lost=one.lost(*shown),
                sources=one.source(*dict.fromkeys(shown)),
                digits=quantity.digits,
            )
        )
    return charts


def by_rule(one: Measured) -> Mapping[str, Mapping[float, str]]:
    """rule -> alpha -> cell, rules in their order, alphas ascending; of two cells at one alpha the first."""
    found: dict[str, dict[float, str]] = {}
    for cell, law in one.names.laws.items():
        if law.law == CASCADE and law.rule is not None and law.alpha is not None:
            found.setdefault(law.rule, {}).setdefault(law.alpha, cell)
    return {rule: dict(sorted(found[rule].items())) for rule in sorted(found, key=rule_look)}


def rule_look(rule: str) -> int:
    """The number of a rule's colour and marker."""
    return RULES.index(rule) if rule in RULES else len(RULES)


def _absent(one: Measured, cell: str) -> Series:
    """A cell without a window: where its words state an alpha the cross stands there."""
    words = dict(word.partition("=")[::2] for word in one.run.cells[cell].get("overrides") or ())
    stated = words.get("cascade.alpha", "")
    x = float(stated) if re.fullmatch(r"[0-9.]+", stated) else None
    looks = {name: look for look, name in enumerate(one.run.cells)}
    return Series(one.names.short[cell], looks[cell], (), one.gaps(cell, x))


def _references(one: Measured) -> dict[str, str]:
    """law -> cell of the lines: plain decoding, the exact law, typical at its reference threshold."""
    found = {PLAIN: one.plain, EXACT: one.exact}
    for cell, law in one.names.laws.items():
        if law.law == TYPICAL and law.parameters.get("threshold") == REFERENCE_THRESHOLD:
            found.setdefault(TYPICAL, cell)
    return {law: cell for law, cell in found.items() if cell is not None}


def _series(one: Measured, rule: str, own: Mapping[float, str], quantity: Quantity) -> Series:
    points, gaps = [], []
    for alpha, cell in own.items():
        found = one.figures[cell]
        gaps += one.gaps(cell, alpha)
        if (mean := found.means.get(quantity.figure)) is not None:
            points.append(Point(alpha, mean, found.bands.get(quantity.figure) if quantity.band else None))
    look = rule_look(rule)
    return Series(f"cascade {rule}", look, tuple(points), tuple(gaps), dodge=DODGE * (look - 0.5))
