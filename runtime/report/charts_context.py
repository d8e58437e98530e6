"""Charts over the context of a ladder: speed, latency and memory of every law."""

from __future__ import annotations

from dataclasses import dataclass

from mtrun.runtime.report.chart import BARS, PALE, Chart, Point, Series
from mtrun.runtime.report.measured import Measured

_DODGE = 0.03  # of the context, between two cells: their bars would cover each other


@dataclass(frozen=True)
class Quantity:
    """What a chart over the context shows."""

    figure: str
    slug: str
    title: str
    y_label: str
    digits: int


QUANTITIES = (
    Quantity("decode_tok_s", "decode", "Decode speed by context", "decode tok/s", 1),
    Quantity("prefill_tok_s", "prefill", "Prefill speed by context", "prefill tok/s", 1),
    Quantity("ttft_ms", "ttft", "Time to the first token by context", "time to first token (ms)", 0),
    Quantity("rss_mib", "memory", "Memory of the process by context", "resident memory after the window (MiB)", 0),
    Quantity("mlx_peak_mib", "mlx-memory", "Peak memory of MLX by context", "peak MLX memory (MiB)", 0),
)


def context_charts(one: Measured) -> list[Chart]:
    """A chart for each quantity that a ladder's windows hold."""
    charts = []
    for quantity in QUANTITIES:
        series = tuple(_series(one, cell, look, quantity) for look, cell in enumerate(one.run.cells))
        if not any(point.y.value for one_law in series for point in one_law.points):
            continue  # not measured, or zero because nothing of it ran
        charts.append(
            Chart(
                f"{one.slug}-{quantity.slug}-context",
                f"{quantity.title}, {one.title}",
                f"{BARS} {PALE} Laws at one context stand beside each other to be seen.",
                "context (prompt tokens)",
                quantity.y_label,
                series,
                ticks={float(level): tick(level) for level in one.run.levels},
                log_x=True,
                from_zero=True,
                lost=one.lost(),
                sources=one.source(),
                digits=quantity.digits,
            )
        )
    return charts


def tick(level: int) -> str:
    """`2k` for 2048 or 2000, the number itself for what is no round context."""
    if level % 1024 == 0:
        return f"{level // 1024}k"
    return f"{level // 1000}k" if level % 1000 == 0 else str(level)


def _series(one: Measured, cell: str, look: int, quantity: Quantity) -> Series:
    points, gaps = [], []
    middle = (len(one.run.cells) - 1) / 2
    for level in one.run.levels:
        found = one.by_level[level][cell]
        gaps += one.gaps(cell, float(level), level)
        if (mean := found.means.get(quantity.figure)) is not None:
            points.append(Point(float(level), mean, found.bands.get(quantity.figure)))
    return Series(one.names.short[cell], look, tuple(points), tuple(gaps), dodge=_DODGE * (look - middle))
