"""The table of a micro run: what parts of mtrun take alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mtrun.runtime.bench.micro.record import microseconds
from mtrun.runtime.measure.stats import Band
from mtrun.runtime.report.chart import band_text
from mtrun.runtime.report.document import Block, Bullets, Heading, Text, table
from mtrun.runtime.report.laws import Codes
from mtrun.runtime.report.runs import Run, told

HEADINGS = ("part", "group", "case", "us/call: median (min-max), n", "IQR (us)", "calls/round", "with")
NOTE = (
    "Microseconds of one call; a round is the mean of its calls, and the band is median (smallest-largest) over n "
    "rounds of one process: a description, and two bands are not compared. IQR is the distance between the quartiles."
)


def micro_blocks(run: Run, codes: Codes) -> list[Block]:
    """The part of one micro run."""
    rows = [_row(case) for case in run.cases if case["n"]]
    source = [(run.name, cell) for cell in run.cells]
    blocks: list[Block] = [Heading(2, f"Parts alone: {run.name}")]
    blocks += (
        [table(f"{run.name}-micro", f"Time of a call, {run.name}", HEADINGS, rows, source), Text(NOTE)] if rows else []
    )
    marks = dict.fromkeys(mark for one in run.made_by if (mark := codes.mark(one)))
    lines = [*told(run.lost), *(f"{run.name}: {mark}." for mark in marks)]
    return [*blocks, Bullets(tuple(lines))] if lines else blocks


def case_figures(case: Mapping[str, Any]) -> dict[str, Any]:
    """A case with rounds as figures.json has it, in microseconds: median, low, high, n, iqr, text."""
    band, digits = _band(case)
    return {**asdict(band), "iqr": microseconds(case["iqr"])[0], "text": band_text(band, digits)}


def _row(case: Mapping[str, Any]) -> Sequence[str]:
    band, digits = _band(case)
    iqr = microseconds(case["iqr"])[0]
    about = ", ".join(f"{name} {value}" for name, value in case["about"].items())
    calls = str(case["iterations"])
    return (
        case["cell"],
        case["group"],
        case["name"],
        band_text(band, digits),
        f"{iqr:.{digits}f}",
        calls,
        about or "-",
    )


def _band(case: Mapping[str, Any]) -> tuple[Band, int]:
    """Microseconds, and decimals to print."""
    median, digits = microseconds(case["median"])
    return Band(median, microseconds(case["min"])[0], microseconds(case["max"])[0], case["n"]), digits
