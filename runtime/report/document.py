"""A report as blocks, and those as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mtrun.runtime.report.chart import Chart, Source


@dataclass(frozen=True)
class Heading:
    """Level 1 is the title."""

    level: int
    text: str


@dataclass(frozen=True)
class Text:
    """One paragraph."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows of texts. `name` is unique in the report; `sources` are the cells whose receipts it shows."""

    name: str
    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Picture:
    """A chart, with what it lacks listed under it."""

    chart: Chart


Block = Heading | Text | Bullets | Table | Picture


def table(
    name: str, caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], sources: Sequence[Source]
) -> Table:
    """A table without the columns that are empty (`-`) in every row; the first column always stays."""
    kept = [at for at in range(len(headings)) if at == 0 or any(row[at] != "-" for row in rows)]
    return Table(
        name,
        caption,
        tuple(headings[at] for at in kept),
        tuple(tuple(row[at] for at in kept) for row in rows),
        tuple(sources),
    )


def markdown(blocks: Sequence[Block]) -> str:
    """The report, ending in a newline."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {text}"
        case Text(text):
            return text
        case Bullets(lines):
            return "\n".join(f"- {line}" for line in lines)
        case Table():
            rows = [block.headings, ["---"] * len(block.headings), *block.rows]
            lines = [f"| {' | '.join(_cell(text) for text in row)} |" for row in rows]
            return "\n".join([f"{block.caption}:", "", *lines])
        case Picture(chart):
            parts = [f"![{chart.title}]({chart.file})", f"{chart.title}. {chart.words}"]
            parts += ["\n".join(f"- {line}" for line in chart.lost)] if chart.lost else []
            return "\n\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
