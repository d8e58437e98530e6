"""One bench run with its cells named and their figures computed; what its tables and charts share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mtrun.runtime.report.chart import Gap, Source
from mtrun.runtime.report.figures import CellFigures, cell_figures
from mtrun.runtime.report.laws import EXACT, PLAIN, CellLaw, Codes, Names, names_of
from mtrun.runtime.report.runs import Lost, Run, told


@dataclass(frozen=True)
class Measured:
    """`slug` starts the names of its charts. `plain` and `exact` are the cells that others are compared with."""

    slug: str
    run: Run
    names: Names
    plain: str | None
    exact: str | None
    figures: Mapping[str, CellFigures]
    by_level: Mapping[int, Mapping[str, CellFigures]]  # contexts of a ladder, ascending

    @property
    def title(self) -> str:
        """The pack, for the title of a chart."""
        return self.run.pack

    def law(self, cell: str) -> CellLaw | None:
        """The law of a cell, None for one that was never set up."""
        return self.names.laws.get(cell)

    def source(self, *cells: str) -> tuple[Source, ...]:
        """The receipts of cells, all where none is named."""
        return tuple((self.run.name, cell) for cell in (cells or self.run.cells))

    def lost(self, *cells: str) -> tuple[str, ...]:
        """What of these cells does not count, one sentence each."""
        return tuple(told([one for one in self.run.lost if not cells or one.cell in cells]))

    def gaps(self, cell: str, x: float | None, level: int | None = None) -> tuple[Gap, ...]:
        """The crosses of a cell at x: `missing` where nothing counts, else how many windows of how many."""
        gone = [one for one in self.run.lost if one.cell == cell and _at(one, level)]
        if not gone:
            return ()
        found = self.figures[cell] if level is None else self.by_level[level][cell]
        if found.windows:
            return (Gap(x, f"{len(gone)} of {found.expected} missing"),)
        whats = {one.what for one in gone}
        return (Gap(x, whats.pop() if len(whats) == 1 else "missing"),)


def measured(run: Run, codes: Codes, slug: str) -> Measured:
    """Names and figures of a bench run."""
    names = names_of(run, codes)
    plain, exact = _cell_of(names, PLAIN), _cell_of(names, EXACT)
    return Measured(
        slug,
        run,
        names,
        plain,
        exact,
        {cell: cell_figures(run, cell, plain, exact) for cell in run.cells},
        {level: {cell: cell_figures(run, cell, plain, exact, level) for cell in run.cells} for level in run.levels},
    )


def _cell_of(names: Names, law: str) -> str | None:
    """The cell that others are compared with: the one called like the law, or the first of it."""
    own = [cell for cell, found in names.laws.items() if found.law == law]
    return law if law in own else next(iter(own), None)


def _at(lost: Lost, level: int | None) -> bool:
    return level is None or lost.slot is None or lost.slot.level == level
