"""The verdict table that is printed before a port opens: plain text columns, the reason wrapped to the width."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from mtrun.runtime.verdicts import Verdict, summary

HEADINGS = ("lane", "state", "exactness", "decided by", "reason")
GAP = "  "
NARROWEST_REASON = 24  # columns; under it the reason goes to lines of its own


def table(verdicts: Sequence[Verdict], width: int = 100) -> str:
    """The table and the summary line, no line longer than `width` columns where the words allow; no trailing spaces."""
    rows = [_cells(verdict) for verdict in verdicts]
    widths = [max(len(row[column]) for row in [HEADINGS, *rows]) for column in range(len(HEADINGS) - 1)]
    lead = sum(widths) + len(GAP) * len(widths)
    beside = width - lead >= NARROWEST_REASON
    shown = HEADINGS if beside else HEADINGS[:-1]
    lines = [_line(shown, widths), _line(tuple("-" * len(heading) for heading in shown), widths)]
    for row in rows:
        lines.extend(_beside(row, widths, lead, width) if beside else _below(row, widths, width))
    return "\n".join([*lines, summary(verdicts)])


def _cells(verdict: Verdict) -> tuple[str, ...]:
    figures = verdict.proof.figures if verdict.proof is not None else {}
    measured = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
    reason = f"{verdict.reason} ({measured})" if measured else verdict.reason
    state, exactness = verdict.state.value, verdict.exactness.value
    return verdict.lane, state, exactness, verdict.decided_by.source, reason


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, [*widths, 0], strict=False)]
    return GAP.join(padded).rstrip()


def _beside(row: Sequence[str], widths: Sequence[int], lead: int, width: int) -> list[str]:
    first, *rest = textwrap.wrap(row[-1], width - lead) or [""]
    return [_line([*row[:-1], first], widths), *(" " * lead + line for line in rest)]


def _below(row: Sequence[str], widths: Sequence[int], width: int) -> list[str]:
    reason = textwrap.wrap(row[-1], max(width - 4, NARROWEST_REASON))
    return [_line(row[:-1], widths), *("    " + line for line in reason)]
