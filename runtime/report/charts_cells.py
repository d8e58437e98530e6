"""Charts with one mark a law: acceptance by depth, where a cycle's time goes, speed against quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtrun.runtime.measure.stats import Interval
from mtrun.runtime.report.chart import BARS, SHARE, Chart, Gap, Point, Series, Source, Stack, has_points
from mtrun.runtime.report.laws import PLAIN
from mtrun.runtime.report.measured import Measured

_DODGE = 0.035  # depths between two cells


def depth_chart(one: Measured) -> list[Chart]:
    """Acceptance by depth of every law that drafts."""
    cells = [cell for cell in one.run.cells if (law := one.law(cell)) is None or law.law != PLAIN]
    middle = (len(cells) - 1) / 2
    looks = {cell: look for look, cell in enumerate(one.run.cells)}
    series = tuple(
        Series(
            one.names.short[cell],
            looks[cell],
            tuple(Point(float(at), found) for at, found in enumerate(one.figures[cell].depths, start=1)),
            one.gaps(cell, None),
            dodge=_DODGE * (number - middle),
        )
        for number, cell in enumerate(cells)
    )
    if not has_points(series):
        return []
    deepest = max(len(one.points) for one in series)
    return [
        Chart(
            f"{one.slug}-depth",
            f"Drafts kept by depth, {one.title}",
            f"{BARS} The share of cycles that kept the draft at that depth.",
            "depth of the draft",
            "accepted by depth (kept / cycles)",
            series,
            ticks={float(at): str(at) for at in range(1, deepest + 1)},
            within=SHARE,
            lost=one.lost(*cells),
            sources=one.source(*cells),
        )
    ]


def split_chart(one: Measured) -> list[Chart]:
    """Where the time of a cycle goes, from windows that were timed apart for it."""
    split = {cell: one.figures[cell].split for cell in one.run.cells}
    if not any(split.values()):
        return []
    untold = tuple(
        f"missing: {cell}: no window says where its time went." for cell, found in split.items() if not found
    )
    return [
        Chart(
            f"{one.slug}-split",
            f"Where the time of a cycle goes, {one.title}",
            "Means over windows that were measured apart, since reading the clock between phases costs time; for plain "
            "decoding a cycle is one token.",
            "ms per cycle",
            "law",
            stacks=tuple(Stack(one.names.short[cell], found) for cell, found in split.items()),
            lost=untold,
            sources=one.source(),
        )
    ]


@dataclass(frozen=True)
class Quality:
    """One measure of what a law's output is worth, by cell of the bench run, with where it was measured."""

    slug: str
    title: str
    y_label: str
    caption: str
    digits: int
    values: Mapping[str, Interval]
    sources: Sequence[Source]
    level: float | None = None
    within: tuple[float, float] | None = None


def nll_quality(one: Measured) -> Quality:
    """The gap to plain decoding of the windows' own text."""
    gaps = {cell: found.nll_gap for cell, found in one.figures.items()}
    if one.plain is not None and one.figures[one.plain].windows:
        gaps[one.plain] = Interval(0.0, None, None, one.figures[one.plain].seeds)
    known = {cell: gap for cell, gap in gaps.items() if gap is not None}
    return Quality(
        "nll",
        "Speed against the NLL gap",
        "target NLL less that of plain decoding (nats a token)",
        "A gap below zero is text that the model finds likelier, not better.",
        3,
        known if len(known) > 1 else {},
        (),
        level=0.0,
    )


def operating_chart(one: Measured, quality: Quality) -> list[Chart]:
    """Decode speed as a ratio to plain decoding, against one measure of quality."""
    if not quality.values:
        return []
    series = tuple(_operating(one, cell, look, quality) for look, cell in enumerate(one.run.cells))
    if not has_points(series):
        return []
    untold = [
        f"missing: {cell}: no {quality.y_label.split(' (')[0]}." for cell in one.run.cells if cell not in quality.values
    ]
    return [
        Chart(
            f"{one.slug}-operating-{quality.slug}",
            f"{quality.title}, {one.title}",
            f"Bars with caps are 95 % intervals. {quality.caption}",
            "decode speed, ratio to plain decoding",
            quality.y_label,
            series,
            level=(1.0, quality.level),
            within=quality.within,
            lost=(*one.lost(), *untold),
            sources=(*one.source(), *quality.sources),
            digits=quality.digits,
        )
    ]


def _operating(one: Measured, cell: str, look: int, quality: Quality) -> Series:
    ratio, value = one.figures[cell].to_plain, quality.values.get(cell)
    if cell == one.plain and value is not None:
        ratio = Interval(1.0, None, None, one.figures[cell].seeds)
    label = one.names.short[cell]
    if ratio is None or value is None:
        return Series(label, look, (), (Gap(None, "missing"),), joined=False)
    gone = one.gaps(cell, ratio.value)
    return Series(label, look, (Point(ratio.value, value, across=ratio),), gone, joined=False)
