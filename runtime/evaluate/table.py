"""A summary for people: one row in total, one a family, one a seed, then the intervals."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

# Heading -> (measure, digits after the point).
COLUMNS = {
    "answers": ("answers", 0),
    "pass@1": ("pass_at_1", 3),
    "completed": ("completed_task", 3),
    "truncated": ("truncation_rate", 3),
    "tokens": ("output_tokens_mean", 1),
    "most": ("output_tokens_max", 0),
    "kept": ("kept_draft_rate", 3),
    "draft acc.": ("draft_acceptance", 3),
    "deferral": ("deferral_rate", 3),
    "tok/cycle": ("tokens_per_cycle", 2),
    "D_TV": ("mean_divergence", 3),
    "tok/s": ("tok_s", 1),
}
INTERVALS = ("pass_at_1", "completed_task", "truncation_rate", "output_tokens_mean", "kept_draft_rate")
INTERVALS += ("draft_acceptance", "deferral_rate", "tokens_per_cycle", "mean_divergence", "tok_s")
WIDTH = 120  # characters of a line of prose
_NOTE = "pass@1 is strict: a truncated answer is wrong. completed leaves truncated answers out."
_NO_SCIPY = "confidence intervals need scipy: pip install 'mtrun[bench]'"


def table(summary: Mapping[str, Any]) -> str:
    """The summary as lines of text."""
    seeds, total = summary["seeds"], summary["total"]
    head = f"{summary['set']}: {summary['tasks']} tasks x {len(seeds)} seeds under {summary['label']}"
    if summary["missing"]:
        head += f", {summary['missing']} answers missing"
    rows = [("all", total), *summary["by_family"].items()]
    rows += [(f"seed {seed}", one) for seed, one in summary["by_seed"].items()]
    cells = [["", *COLUMNS], *([name, *_figures(one)] for name, one in rows)]
    note = f"{total['wall_seconds']:.1f} s of wall time, {total['prefill_seconds']:.1f} s of it prefill. {_NOTE}"
    return "\n".join([head, *_aligned(cells), *textwrap.wrap(note, WIDTH), *_intervals(total["intervals"])])


def _figures(one: Mapping[str, Any]) -> list[str]:
    return [_figure(one[measure], digits) for measure, digits in COLUMNS.values()]


def _figure(value: float | None, digits: int) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells]


def _intervals(found: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    headings = {measure: (heading, digits) for heading, (measure, digits) in COLUMNS.items()}
    known = {name: one for name in INTERVALS if (one := found.get(name)) is not None}
    if any(one["low"] is None for one in known.values()):
        return [_NO_SCIPY]
    told: list[str] = []
    for name, one in known.items():
        heading, digits = headings[name]
        value, low, high = (_figure(one[key], digits) for key in ("value", "low", "high"))
        told.append(f"{heading} {value} [{low}, {high}]")
    lead = f"95 % Student t over {max((one['n'] for one in known.values()), default=0)} seeds:"
    return [lead, *textwrap.wrap(", ".join(told), WIDTH, break_long_words=False)] if told else []
