"""The verdict of interleaved rounds (A B A B) of one run."""

from __future__ import annotations

from dataclasses import dataclass

from mtrun.runtime.measure.abab import DEFAULT_MARGIN, Comparison, compare
from mtrun.runtime.measure.figures import decode_speed, place_means
from mtrun.runtime.report.runs import Run


@dataclass(frozen=True)
class Verdict:
    """Decode speed of cell b over cell a; rounds and prompts are averaged within a seed."""

    a: str
    b: str
    found: Comparison


def verdict(run: Run) -> Verdict | None:
    """Compares a run's two cells, b with a; None where they are not two, or have no window in common."""
    named = [str(run.plan.get(side)) for side in ("a", "b")]
    cells = named if all(name in run.cells for name in named) else list(run.cells)
    if len(cells) != 2:
        return None
    a, b = (place_means(run.counted[cell].values(), decode_speed) for cell in cells)
    margin = run.plan.get("margin")
    found = compare(a, b, DEFAULT_MARGIN if margin is None else float(margin))
    return None if found is None else Verdict(cells[0], cells[1], found)
