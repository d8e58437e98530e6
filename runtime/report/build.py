"""From folders of runs to the files of a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.report.chart import Chart
from mtrun.runtime.report.charts_alpha import alpha_charts
from mtrun.runtime.report.charts_cells import depth_chart, nll_quality, operating_chart, split_chart
from mtrun.runtime.report.charts_context import context_charts
from mtrun.runtime.report.charts_shadow import shadow_chart
from mtrun.runtime.report.document import Block, Bullets, Heading, Picture, Text, markdown
from mtrun.runtime.report.drawing import draw
from mtrun.runtime.report.facts import runs_table, surroundings
from mtrun.runtime.report.laws import codes_of
from mtrun.runtime.report.measured import Measured, measured
from mtrun.runtime.report.numbers import numbers
from mtrun.runtime.report.page import page
from mtrun.runtime.report.runs import Run, told
from mtrun.runtime.report.tables_bench import (
    caveats,
    ladder_table,
    paired_blocks,
    rates_table,
    shadow_table,
    speed_table,
)
from mtrun.runtime.report.tables_micro import micro_blocks
from mtrun.runtime.report.tables_quality import (
    Evaluated,
    evaluated,
    joined_table,
    task_quality,
    task_table,
    text_table,
)

REPORT, PAGE, FIGURES = "report.md", "index.html", "figures.json"
NOTES = """\
The seed is the unit: intervals are 95 % Student t over seed means, ratios are paired by seed and prompt on a
log scale, and an interval needs two seeds. The band, median (smallest-largest) over n windows, is a
description: two bands are not compared. Decode tok/s leaves out prefill and the first token. ms/cycle is the
decode time of one target forward with all that belongs to it; for plain decoding one forward is one token.
Draft acceptance is accepted / drafted, the deferral rate deferred / positions, the kept-draft rate accepted /
positions, mean D_TV the mean total variation distance between target and draft rows over decided positions;
each is formed from a seed's summed counters. Target NLL is in nats a token under the model's own unfiltered
distribution at temperature 1; a gap below zero is text that the model finds likelier, not better. Strict counts
an answer that was cut off as failed, completed leaves it out; their intervals are Wilson's with tasks as units.
Windows that were refused, died or are missing are in no figure; they are listed."""


@dataclass(frozen=True)
class Report:
    """Everything a report says, before it is drawn."""

    title: str
    blocks: tuple[Block, ...]
    figures: Mapping[str, Any]  # the object of figures.json

    @property
    def charts(self) -> tuple[Chart, ...]:
        return tuple(block.chart for block in self.blocks if isinstance(block, Picture))


def compile_report(runs: Sequence[Run], title: str) -> Report:
    """The report of runs that were read. Raises ConfigurationError without scipy."""
    if find_spec("scipy") is None:
        raise ConfigurationError("intervals need scipy: pip install 'mtrun[bench]'.")
    codes = codes_of(runs)
    benches = [measured(run, codes, run.name) for run in runs if not (run.is_eval or run.is_micro)]
    evals = evaluated(runs, codes)
    micros = [run for run in runs if run.is_micro]
    packs = list(dict.fromkeys(run.pack for run in runs if not run.is_micro))
    blocks: list[Block] = [Heading(1, title), Heading(2, "What was measured"), runs_table(runs)]
    blocks.append(surroundings(runs, codes))
    blocks += [Heading(2, "Laws: speed and quality")] if packs else []
    for pack in packs:
        sweeps = [one for one in benches if one.run.pack == pack and one.run.kind == "sweep"]
        joined = joined_table(pack, sweeps, [one for one in evals if one.run.pack == pack])
        blocks += [joined] if joined else []
    for one in benches:
        blocks += _bench(one, [each for each in evals if each.run.pack == one.run.pack])
    for pack in packs:
        blocks += _eval(pack, [one for one in evals if one.run.pack == pack])
    for run in micros:
        blocks += micro_blocks(run, codes)
    blocks += [Heading(2, "How to read this"), Text(" ".join(NOTES.split()))] if packs else []
    return Report(title, tuple(blocks), numbers(benches, evals, micros))


def render(report: Report, drawn: Callable[[Chart], bytes] = draw) -> dict[str, bytes]:
    """The report's files by their path, manifest.json left out. Raises ConfigurationError without matplotlib."""
    pictures = {chart.file: drawn(chart) for chart in report.charts}
    return {
        REPORT: markdown(report.blocks).encode(),
        PAGE: page(report.blocks, pictures).encode(),
        FIGURES: encode(report.figures),
        **pictures,
    }


def encode(value: Any) -> bytes:
    """JSON in one spelling."""
    return (json.dumps(value, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files. Raises ConfigurationError where that is not possible."""
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written ({error.strerror}): choose another folder.") from error


def _bench(one: Measured, evals: Sequence[Evaluated]) -> list[Block]:
    """The part of one bench run."""
    heading = {"sweep": "Sweep", "ladder": "Contexts", "abab": "Interleaved rounds"}.get(one.run.kind, one.run.kind)
    blocks: list[Block] = [Heading(2, f"{heading} on {one.run.pack}: {one.run.name}")]
    charts: list[Chart] = []
    if one.run.kind == "ladder":
        blocks.append(ladder_table(one))
        charts += context_charts(one)
    else:
        blocks += [*(paired_blocks(one) if one.run.kind == "abab" else []), speed_table(one), rates_table(one)]
        charts += alpha_charts(one) if one.run.kind == "sweep" else []
        charts += [*depth_chart(one), *split_chart(one), *_operating(one, evals), *shadow_chart(one)]
    blocks += [Picture(chart) for chart in charts]
    return [*blocks, *shadow_table(one), caveats(one)]


def _operating(one: Measured, evals: Sequence[Evaluated]) -> list[Chart]:
    if one.run.kind != "sweep":
        return []
    sets = dict.fromkeys(each.set for each in evals if each.tasks)
    qualities = [task_quality(name, [each for each in evals if each.set == name]) for name in sets]
    return [chart for quality in (nll_quality(one), *qualities) for chart in operating_chart(one, quality)]


def _eval(pack: str, evals: Sequence[Evaluated]) -> list[Block]:
    """The eval runs of one pack."""
    if not evals:
        return []
    blocks: list[Block] = [Heading(2, f"Answers and text of {pack}")]
    for name in dict.fromkeys(one.set for one in evals if one.tasks):
        blocks.append(task_table(pack, name, [one for one in evals if one.set == name]))
    scored = [one for one in evals if one.text]
    blocks += [text_table(pack, scored)] if scored else []
    lost = [f"{one.run.name}: {each}" for one in evals for each in told(one.run.lost)]
    return [*blocks, Bullets(tuple(lost))] if lost else blocks
