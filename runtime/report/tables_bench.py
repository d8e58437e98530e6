"""Tables of bench runs: speed, rates, contexts, interleaved rounds, predictions, and what does not count."""

from __future__ import annotations

from collections.abc import Mapping

from mtrun.runtime.measure.figures import CONTENTION
from mtrun.runtime.measure.stats import interval_text
from mtrun.runtime.report.chart import band_text
from mtrun.runtime.report.charts_context import tick
from mtrun.runtime.report.charts_shadow import VALIDITY, predictions
from mtrun.runtime.report.document import Block, Bullets, Table, Text, table
from mtrun.runtime.report.figures import CellFigures
from mtrun.runtime.report.measured import Measured
from mtrun.runtime.report.paired import Verdict, verdict

SPEED = (
    "cell", "law", "decode tok/s: median (min-max), n", "to plain", "to exact", "tokens/cycle", "ms/cycle",
    "windows (seeds)", "code",
)  # fmt: skip
RATES = (
    "cell", "draft acceptance", "deferral rate", "kept-draft rate", "mean D_TV", "target NLL", "gap to plain",
)  # fmt: skip
LADDER = (
    "context", "cell", "decode tok/s: median (min-max), n", "to plain", "prefill tok/s", "time to first token (ms)",
    "resident memory (MiB)", "peak MLX memory (MiB)", "windows", "not measured",
)  # fmt: skip
SHADOW = (
    "rows of", "shadow law", "predicted keep", "measured keep", "predicted, depth 1", "measured, depth 1",
)  # fmt: skip


def law_words(one: Measured, cell: str) -> str:
    """The law of a cell as its setting states it."""
    return one.names.text[cell]


def speed_table(one: Measured) -> Table:
    """Decode speed of every cell with its two factors."""
    rows = [_speed_row(one, found) for found in one.figures.values()]
    return table(f"{one.slug}-speed", f"Decode speed, {one.run.name}", SPEED, rows, one.source())


def rates_table(one: Measured) -> Table:
    """The rates and the likelihood of every cell's text."""
    rows = [_rates_row(one, found) for found in one.figures.values()]
    return table(f"{one.slug}-rates", f"What the laws kept, {one.run.name}", RATES, rows, one.source())


def ladder_table(one: Measured) -> Table:
    """Every context with every cell; one above the memory cap is a row that says so."""
    rows = [_ladder_row(one, level, found) for level, cells in one.by_level.items() for found in cells.values()]
    return table(f"{one.slug}-ladder", f"By context, {one.run.name}", LADDER, rows, one.source())


def paired_blocks(one: Measured) -> list[Block]:
    """The verdict of interleaved rounds, and every pair it rests on."""
    found = verdict(one.run)
    if found is None:
        return [Text("There is no verdict: interleaved rounds compare two cells that have windows in common.")]
    a, b = (one.names.short[cell] for cell in (found.a, found.b))
    pairs = [(pair["seed"], pair["a"], pair["b"]) for pair in found.found.pairs]
    rows = [(str(seed), f"{left:.2f}", f"{right:.2f}", f"{right / left:.3f}") for seed, left, right in pairs]
    headings = ("seed", f"{a} tok/s", f"{b} tok/s", "ratio")
    caption = f"Every pair, rounds averaged within a seed, {one.run.name}"
    return [
        Text(verdict_words(one, found)),
        table(f"{one.slug}-pairs", caption, headings, rows, one.source(found.a, found.b)),
    ]


def verdict_words(one: Measured, found: Verdict) -> str:
    """The ratio, its interval, its p and what may be said, in a sentence."""
    compared = found.found
    drawn = "" if compared.sign_flip.exact else f" ({compared.sign_flip.flips:,} flips drawn)"
    return (
        f"`{found.b}` ({one.names.short[found.b]}) to `{found.a}` ({one.names.short[found.a]}): decode speed "
        f"{interval_text(compared.ratio, 3)} over {compared.ratio.n} seeds, sign-flip p {compared.sign_flip.p:.4f}"
        f"{drawn}, equivalence margin {compared.margin:.0%}: {compared.verdict}."
    )


def shadow_table(one: Measured) -> list[Block]:
    """Predictions of shadow laws beside the measured rates."""
    found = predictions(one)
    rows = [
        (
            one.names.short[entry.deciding],
            entry.law.short,
            interval_text(entry.keep, 3),
            interval_text(entry.measured, 3),
            interval_text(entry.first, 3),
            interval_text(entry.measured_first, 3),
        )
        for entry in found
    ]
    if not rows:
        return []
    shown = dict.fromkeys(cell for entry in found for cell in (entry.deciding, entry.cell) if cell)
    caption = f"Kept-draft rates of shadow laws, {one.run.name}"
    return [table(f"{one.slug}-shadows", caption, SHADOW, rows, one.source(*shown)), Text(VALIDITY)]


def caveats(one: Measured) -> Bullets:
    """What a reader has to know before believing the tables."""
    run = one.run
    lines = [f"{run.warm_ups} warm-up windows were dropped, {sum(map(len, run.counted.values()))} windows count."]
    lines.append(f"contended: {run.contended} windows took more than {CONTENTION:g} times their CPU time to decode.")
    lines += _unequal("", one.figures) if not run.levels else []
    lines += [line for level, found in one.by_level.items() for line in _unequal(f" at {tick(level)}", found)]
    lines += one.lost()
    lines += [f"{cell}: {mark}." for cell, mark in one.names.marks.items() if mark]
    return Bullets(tuple(lines))


def _unequal(where: str, figures: Mapping[str, CellFigures]) -> list[str]:
    """Cells side by side that rest on different numbers of windows."""
    counts = {cell: found.windows for cell, found in figures.items()}
    if len(set(counts.values())) <= 1:
        return []
    words = ", ".join(f"{cell} {n}" for cell, n in counts.items())
    return [f"unequal n{where}: {words}; a ratio uses the windows that both cells have, a band those of its own cell."]


def windows_words(found: CellFigures) -> str:
    """`16 (8)`; a cell that lacks windows says of how many."""
    of = f" of {found.expected}" if found.windows != found.expected else ""
    return f"{found.windows}{of} ({found.seeds})"


def _speed_row(one: Measured, found: CellFigures) -> tuple[str, ...]:
    cell = found.cell
    return (
        cell,
        law_words(one, cell),
        band_text(found.bands.get("decode_tok_s")) if found.windows else "missing",
        "1" if cell == one.plain and found.windows else interval_text(found.to_plain),
        "1" if cell == one.exact and found.windows else interval_text(found.to_exact),
        interval_text(found.means.get("tokens_per_cycle")),
        interval_text(found.means.get("ms_per_cycle")),
        windows_words(found),
        one.names.marks[cell] or "-",
    )


def _rates_row(one: Measured, found: CellFigures) -> tuple[str, ...]:
    names = ("draft_acceptance", "deferral_rate", "kept_draft_rate", "mean_divergence", "nll")
    shown = [interval_text(found.means.get(name), 3) for name in names]
    return (found.cell, *shown, interval_text(found.nll_gap, 3, "+") if found.cell != one.plain else "-")


def _ladder_row(one: Measured, level: int, found: CellFigures) -> tuple[str, ...]:
    gone = [lost for lost in one.run.lost if lost.cell == found.cell and (not lost.slot or lost.slot.level == level)]
    reasons = dict.fromkeys(f"{lost.what}: {lost.reason.rstrip('.')}" for lost in gone)
    return (
        tick(level),
        one.names.short[found.cell],
        band_text(found.bands.get("decode_tok_s")),
        "1" if found.cell == one.plain and found.windows else interval_text(found.to_plain),
        *(interval_text(found.means.get(name), 0) for name in ("prefill_tok_s", "ttft_ms", "rss_mib")),
        interval_text(found.means.get("mlx_peak_mib"), 0),
        windows_words(found),
        "; ".join(reasons) or "-",
    )
