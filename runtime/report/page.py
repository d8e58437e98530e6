"""The report as one HTML file that asks nobody for anything: pictures, style and the sorting of tables are inside."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence

from mtrun.runtime.report.chart import Chart
from mtrun.runtime.report.document import Block, Bullets, Heading, Picture, Table, Text

_STYLE = """
:root { color-scheme: light dark; --page: #fdfdfc; --ink: #1b1d21; --soft: #5b616b; --line: #d9dce1; --row: #f3f4f6;
  --link: #0a58a8; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15171b; --ink: #e6e8eb; --soft: #a2a9b4; --line: #363b44; --row: #1e2127; --link: #7db7f0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 75rem; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1, h2, h3 { line-height: 1.25; margin: 2.2em 0 0.6em; }
h1 { margin-top: 0.5em; }
h2 { border-bottom: 1px solid var(--line); padding-bottom: 0.25em; }
a { color: var(--link); }
nav ul { columns: 2 18rem; padding-left: 1.2rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding: 0.3rem 0; }
th, td { padding: 0.35rem 0.65rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; }
td.words { white-space: normal; min-width: 12rem; }
tbody tr:nth-child(even) { background: var(--row); }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid var(--link); }
th button::after { content: " \\2195"; color: var(--soft); font-weight: 400; }
th[aria-sort="ascending"] button::after { content: " \\2191"; }
th[aria-sort="descending"] button::after { content: " \\2193"; }
figure { margin: 1.6rem 0; }
.card { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 0.6rem; }
.card svg { display: block; width: 100%; height: auto; max-width: 60rem; margin: 0 auto; }
figcaption { color: var(--soft); font-size: 0.9rem; margin-top: 0.4rem; }
code { background: var(--row); padding: 0 0.25em; border-radius: 4px; overflow-wrap: anywhere; }
"""
_SCRIPT = """
const leading = (text) => { const found = text.match(/^[+-]?[0-9][0-9.,]*/);
  return found ? parseFloat(found[0].replace(/,/g, "")) : NaN; };
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const head = button.parentElement, body = head.closest("table").tBodies[0], at = head.cellIndex;
  const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
  const rows = [...body.rows].map((row) => [row, row.cells[at].textContent.trim()]);
  rows.sort(([, a], [, b]) => { const x = leading(a), y = leading(b);
    if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;
    return sign * (isNaN(x) ? a.localeCompare(b) : x - y); });
  body.append(...rows.map(([row]) => row));
});
"""
_OPENING = re.compile(r".*?<svg\b[^>]*?(?P<box>viewBox=\"[^\"]*\")[^>]*>", re.DOTALL)
_ID = re.compile(r'(\bid="|\burl\(#|\bhref="#)')
_WORDS = 40  # characters above which a table's cell may break into lines


def page(blocks: Sequence[Block], pictures: Mapping[str, bytes]) -> str:
    """The whole page; `pictures` are the drawn charts by `Chart.file`."""
    title = next(block.text for block in blocks if isinstance(block, Heading))
    parts = [_block(block, number, pictures) for number, block in enumerate(blocks)]
    parts.insert(1, _contents(blocks))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + f"\n</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def _contents(blocks: Sequence[Block]) -> str:
    places = [(at, one.text) for at, one in enumerate(blocks) if isinstance(one, Heading) and one.level > 1]
    lines = "".join(f'<li><a href="#s{at}">{html.escape(text)}</a></li>' for at, text in places)
    return f'<nav aria-label="Contents"><ul>{lines}</ul></nav>'


def _block(block: Block, number: int, pictures: Mapping[str, bytes]) -> str:
    match block:
        case Heading(level, text):
            return f'<h{level} id="s{number}">{html.escape(text)}</h{level}>'
        case Text(text):
            return f"<p>{_inline(text)}</p>"
        case Bullets(lines):
            return _list(lines)
        case Table():
            return _table(block)
        case Picture(chart):
            return _picture(chart, pictures[chart.file])


def _table(table: Table) -> str:
    heads = "".join(f'<th scope="col"><button type="button">{_inline(one)}</button></th>' for one in table.headings)
    rows = "\n".join(f"<tr>{''.join(_td(text) for text in row)}</tr>" for row in table.rows)
    return (
        f'<div class="wide" role="region" aria-label="{html.escape(table.caption)}" tabindex="0">'
        f'<table id="{table.name}"><caption>{_inline(table.caption)}</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _td(text: str) -> str:
    return f'<td class="words">{_inline(text)}</td>' if len(text) > _WORDS else f"<td>{_inline(text)}</td>"


def _picture(chart: Chart, drawn: bytes) -> str:
    lost = _list(chart.lost) if chart.lost else ""
    return (
        f'<figure id="{chart.name}"><div class="card">{_inside(chart, drawn)}</div>\n'
        f"<figcaption>{_inline(chart.words)}{lost}</figcaption></figure>"
    )


def _inside(chart: Chart, drawn: bytes) -> str:
    """The SVG as an element of the page: its ids are made the chart's own, its namespaces are the page's."""
    text = drawn.decode()
    opening = _OPENING.match(text)
    assert opening is not None, f"{chart.file} has no svg element with a viewBox"
    body = text[opening.end() :].replace("xlink:href", "href")
    body = _ID.sub(lambda found: f"{found[0]}{chart.name}-", body)
    return f'<svg {opening["box"]} role="img" aria-label="{html.escape(chart.alt)}">{body.strip()}'


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_inline(line)}</li>' for line in lines)}</ul>"


def _inline(text: str) -> str:
    """Text with `code` in it."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))
