"""Speed and quality in one table: bench and eval runs joined by pack and cell; and the eval runs by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mtrun.runtime.measure.stats import Interval, interval_text
from mtrun.runtime.report.answers import TASKS, TEXT, TaskFigures, TextFigures, task_figures, text_figures
from mtrun.runtime.report.chart import SHARE, Source, band_text
from mtrun.runtime.report.charts_cells import Quality
from mtrun.runtime.report.document import Table, table
from mtrun.runtime.report.laws import PLAIN, Codes, law_of, names_of
from mtrun.runtime.report.measured import Measured
from mtrun.runtime.report.runs import Run, slug

JOINED = ("cell", "law", "tokens/cycle", "draft acceptance", "deferral rate", "kept-draft rate", "mean D_TV", "tok/s")
TASK_HEADINGS = (
    "cell", "law", "strict", "completed", "truncated", "mean tokens", "most tokens", "kept-draft rate", "seconds",
    "answers (tasks, seeds)", "code",
)  # fmt: skip
TEXT_HEADINGS = (
    "cell", "law", "target NLL", "gap to plain", "off-support mass", "mode mass", "total variation", "distinct-1",
    "distinct-2", "distinct-3", "tokens", "texts (seeds)", "code",
)  # fmt: skip
_TEXT_NAMES = ("nll", "off_support_mass", "mode_mass", "tv", "distinct1", "distinct2", "distinct3")
_MEASURES: Mapping[str, str] = MappingProxyType({"facts": "accuracy"})  # set -> its name where it is not pass@1


@dataclass(frozen=True)
class Evaluated:
    """One eval run: its only cell, named, with the figures of its kind."""

    run: Run
    cell: str
    short: str
    law: str
    mark: str
    tasks: TaskFigures | None
    text: TextFigures | None

    @property
    def set(self) -> str:
        """The tasks or texts that were asked."""
        return str(self.run.data.get("set"))

    @property
    def source(self) -> Source:
        return (self.run.name, self.cell)


def evaluated(runs: Sequence[Run], codes: Codes) -> list[Evaluated]:
    """Every eval run, texts held against the plain run of the same pack and texts."""
    own = [run for run in runs if run.is_eval]
    plains = {
        (run.pack, run.data.get("set_sha256")): run
        for run in reversed(own)
        if run.kind == TEXT and any(law_of(setting).law == PLAIN for setting in run.settings.values())
    }
    found = []
    for run in own:
        names, cell = names_of(run, codes), next(iter(run.cells))
        found.append(
            Evaluated(
                run,
                cell,
                names.short[cell],
                names.text[cell],
                names.marks[cell],
                task_figures(run) if run.kind == TASKS else None,
                text_figures(run, plains.get((run.pack, run.data.get("set_sha256")))) if run.kind == TEXT else None,
            )
        )
    return found


def measure(name: str) -> str:
    """What the share of right answers over a set is called."""
    return _MEASURES.get(name, "pass@1")


def joined_table(pack: str, sweeps: Sequence[Measured], evals: Sequence[Evaluated]) -> Table | None:
    """One row a cell of a pack: of several runs that hold it, the first counts."""
    where = first_of(sweeps)
    tasks = {(one.cell, one.set): one for one in reversed(evals) if one.tasks}
    texts = {one.cell: one for one in reversed(evals) if one.text}
    cells = list(dict.fromkeys([*where, *(one.cell for one in evals)]))
    if not cells:
        return None
    sets = list(dict.fromkeys(name for _, name in sorted(tasks)))
    headings = [*JOINED]
    for name in sets:
        headings += [f"{name}: strict {measure(name)}", f"{name}: completed {measure(name)}"]
    headings += ["NLL gap (windows)", "NLL gap (texts)", "code"]
    rows = []
    for cell in cells:
        shown = [tasks.get((cell, name)) for name in sets]
        row = _bench_columns(cell, where.get(cell), next((one for one in evals if one.cell == cell), None))
        for one in shown:
            row += [interval_text(one.tasks.strict if one and one.tasks else None, 3)]
            row += [interval_text(one.tasks.completed if one and one.tasks else None, 3)]
        rows.append([*row, *_gap_columns(cell, where.get(cell), texts.get(cell)), _marks(cell, where, evals)])
    sources = [source for one in sweeps for source in one.source()] + [one.source for one in evals]
    return table(f"{slug(pack)}-laws", f"Speed and quality, {pack}", headings, rows, sources)


def first_of(sweeps: Sequence[Measured]) -> dict[str, Measured]:
    """cell -> the first sweep that measured it, or lists it where none did."""
    found: dict[str, Measured] = {}
    for measured_only in (True, False):
        for one in sweeps:
            for cell in one.run.cells:
                if one.figures[cell].windows or not measured_only:
                    found.setdefault(cell, one)
    order = list(dict.fromkeys(cell for one in sweeps for cell in one.run.cells))
    return {cell: found[cell] for cell in order}


def task_table(pack: str, name: str, evals: Sequence[Evaluated]) -> Table:
    """Every run over one set of tasks."""
    rows = [_task_row(one, one.tasks) for one in evals if one.tasks]
    families = list(dict.fromkeys(family for one in evals if one.tasks for family in one.tasks.families))
    headings = [*TASK_HEADINGS, *families]
    for row, one in zip(rows, [one for one in evals if one.tasks], strict=True):
        known = one.tasks.families if one.tasks else {}
        row += [
            f"{known[family][0].value:.3f}, n {known[family][1]}" if family in known else "-" for family in families
        ]
    caption = f"Answers to {name}, {pack}: strict and completed {measure(name)}, by family strict"
    return table(f"{slug(pack)}-{slug(name)}-tasks", caption, headings, rows, [one.source for one in evals])


def text_table(pack: str, evals: Sequence[Evaluated]) -> Table:
    """Every run of scored text."""
    rows = [_text_row(one, one.text) for one in evals if one.text]
    caption = f"Text under the target's own distribution, {pack}"
    return table(f"{slug(pack)}-text", caption, TEXT_HEADINGS, rows, [one.source for one in evals])


def task_quality(name: str, evals: Sequence[Evaluated]) -> Quality:
    """The strict share of a set by cell, for a chart against speed."""
    values: dict[str, Interval] = {}
    for one in evals:
        if one.tasks and one.tasks.strict:
            values.setdefault(one.cell, one.tasks.strict)
    return Quality(
        slug(name),
        f"Speed against strict {measure(name)} on {name}",
        f"strict {measure(name)} on {name}",
        "Intervals of the share are Wilson's over tasks.",
        3,
        values,
        [one.source for one in evals],
        within=SHARE,
    )


def _bench_columns(cell: str, one: Measured | None, other: Evaluated | None) -> list[str]:
    if one is None:
        return [cell, other.law if other else "-", *["-"] * (len(JOINED) - 2)]
    found = one.figures[cell]
    names = ("draft_acceptance", "deferral_rate", "kept_draft_rate", "mean_divergence")
    return [
        cell,
        one.names.text[cell],
        interval_text(found.means.get("tokens_per_cycle")),
        *(interval_text(found.means.get(name), 3) for name in names),
        band_text(found.bands.get("decode_tok_s")) if found.windows else "missing",
    ]


def _gap_columns(cell: str, one: Measured | None, text: Evaluated | None) -> list[str]:
    gap = one.figures[cell].nll_gap if one and cell != one.plain else None
    return [interval_text(gap, 3, "+"), interval_text(text.text.gap if text and text.text else None, 3, "+")]


def _marks(cell: str, where: Mapping[str, Measured], evals: Sequence[Evaluated]) -> str:
    marks = [(where[cell].run.name, where[cell].names.marks[cell])] if cell in where else []
    marks += [(one.run.name, one.mark) for one in evals if one.cell == cell]
    return "; ".join(f"{run}: {mark}" for run, mark in marks if mark) or "-"


def _task_row(one: Evaluated, found: TaskFigures) -> list[str]:
    return [
        one.cell,
        one.law,
        interval_text(found.strict, 3),
        interval_text(found.completed, 3),
        f"{found.truncated:.3f}",
        f"{found.mean_tokens:.1f}",
        str(found.most_tokens),
        "-" if found.kept_draft_rate is None else f"{found.kept_draft_rate:.3f}",
        f"{found.seconds:.0f}",
        f"{found.answers} ({found.tasks}, {found.seeds})",
        one.mark or "-",
    ]


def _text_row(one: Evaluated, found: TextFigures) -> list[str]:
    shown = [interval_text(found.means.get(name), 3) for name in _TEXT_NAMES]
    return [
        one.cell,
        one.law,
        shown[0],
        interval_text(found.gap, 3, "+"),
        *shown[1:],
        interval_text(found.means.get("output_tokens"), 1),
        f"{found.texts} ({found.seeds})",
        one.mark or "-",
    ]
