"""Charts drawn with matplotlib: the same numbers give the same bytes.

A white card, since a page may be dark; colours of Okabe and Ito with a marker each, so that neither is needed alone.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure.stats import Interval
from mtrun.runtime.report.chart import Chart, Gap, Reference, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#7F7F7F", "#8C510A", "#5E3C99")
MARKERS = ("s", "o", "^", "D", "v", "P", "X", "<", ">", "p")
DASHES = ((0, (7, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)), (0, (3, 2)))
PARTS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#BFBFBF")
HATCHES = ("", "//", "..", "\\\\", "xx", "")
SIZE = (8.8, 4.4)  # inches
_CROSS: Mapping[str, Any] = MappingProxyType(
    {"marker": "x", "markersize": 8, "markeredgewidth": 2, "linestyle": "none"}
)
_NOTICE: Mapping[str, Any] = MappingProxyType(
    {"ha": "center", "va": "center", "backgroundcolor": "white", "color": "0.2", "fontsize": 8.5}
)
_MISSING = "missing (listed)"
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_ROOM = 0.04  # of an axis, around what it shows
_GAP_ROW = 0.055  # of the axes' height: one row of crosses
_GAP_LETTER = 0.0085  # of the axes' width: an upper estimate of a letter beside a cross


def matplotlib_version() -> str | None:
    """The version that draws here, None where there is none."""
    try:
        return version("matplotlib")
    except PackageNotFoundError:
        return None


def draw(chart: Chart, kind: str = "svg") -> bytes:
    """The picture as a file of `kind`. Raises ConfigurationError where matplotlib is not installed."""
    size = (SIZE[0], 1.2 + 0.34 * len(chart.stacks)) if chart.stacks else SIZE
    with _settled(chart.name, size) as figure:
        axes = figure.subplots()
        if chart.stacks:
            _draw_stacks(chart, axes)
        else:
            _draw_series(chart, axes)
        axes.set_title(chart.title, loc="left", fontsize=11)
        handles, labels = _legend(chart, axes)
        figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8.5)
        held = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if kind == "svg" else None
        figure.savefig(held, format=kind, metadata=metadata, dpi=110)
    if kind != "svg":
        return held.getvalue()
    return _METADATA.sub("", held.getvalue().decode()).encode()


def _legend(chart: Chart, axes: Axes) -> tuple[list[Any], list[str]]:
    """Series in their order, then the reference lines, then what a cross means."""
    found = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    labels = list(found)
    first = [label for label in labels if any(label.startswith(one.label) for one in chart.series)]
    ordered = [*first, *(label for label in labels if label not in first)]
    ordered.sort(key=lambda label: label == _MISSING)
    return [found[label] for label in ordered], ordered


@contextmanager
def _settled(salt: str, size: tuple[float, float]) -> Iterator[Figure]:
    """A figure under matplotlib's own defaults, whatever the user's file of defaults says."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("charts need matplotlib: pip install 'mtrun[bench]'.") from error
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(
            {
                "svg.hashsalt": salt,
                "svg.fonttype": "path",
                "font.family": "DejaVu Sans",
                "font.size": 9.5,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.grid": True,
                "grid.color": "0.9",
                "axes.axisbelow": True,
                "hatch.linewidth": 0.6,
            }
        )
        yield Figure(figsize=size, layout="constrained", facecolor="white")


def _draw_series(chart: Chart, axes: Axes) -> None:
    for number, reference in enumerate(chart.references):
        _draw_reference(chart, reference, number, axes)
    for series in chart.series:
        _draw_points(series, chart.log_x, axes)
    known = next(point.y.value for series in chart.series for point in series.points)
    for x in (gap.x for series in chart.series for gap in series.gaps):
        if x is not None:  # invisible: a gap belongs to the range of x as well
            axes.plot([x], [known], linestyle="none", marker="")
    axes.margins(x=0.08)
    if chart.log_x:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    if chart.ticks:
        axes.set_xticks(list(chart.ticks), list(chart.ticks.values()))
    _look_at(axes.set_ylim, chart.y_range, chart.from_zero)
    if chart.x_range:
        _look_at(axes.set_xlim, chart.x_range, False)
    _draw_levels(chart, axes)
    _draw_gaps(chart, axes)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)


def _look_at(limit: Callable[[float, float], Any], span: tuple[float, float], from_zero: bool) -> None:
    """Sets an axis to a span with room around it."""
    pad = _ROOM * (span[1] - span[0] or 1)
    limit(span[0] - (0 if from_zero else pad), span[1] + pad)


def _draw_points(series: Series, log_x: bool, axes: Axes) -> None:
    colour, marker = COLOURS[series.look % len(COLOURS)], MARKERS[series.look % len(MARKERS)]
    x = [one.x * (1 + series.dodge) if log_x else one.x + series.dodge for one in series.points]
    y = [one.y.value for one in series.points]
    for at, point in zip(x, series.points, strict=True):
        if point.band is not None:
            axes.vlines(at, point.band.low, point.band.high, colors=colour, linewidth=6, alpha=0.22)
    label = series.label if series.points else f"{series.label}: missing"
    axes.errorbar(
        x,
        y,
        yerr=_arms([one.y for one in series.points]),
        xerr=_arms([one.across for one in series.points]) if any(one.across for one in series.points) else None,
        color=colour,
        marker=marker,
        markersize=6,
        markerfacecolor="white" if series.hollow else colour,
        linestyle=("--" if series.hollow else "-") if series.joined else "none",
        linewidth=1.4,
        elinewidth=1.2,
        capsize=3,
        label=label,
    )


def _draw_reference(chart: Chart, reference: Reference, number: int, axes: Axes) -> None:
    colour = COLOURS[reference.look % len(COLOURS)]
    label = f"{reference.label}: {reference.y.value:.{chart.digits}f}"
    axes.axhline(reference.y.value, color=colour, linestyle=DASHES[number % len(DASHES)], linewidth=1.4, label=label)
    low, high = reference.y.low, reference.y.high
    if low is not None and high is not None:  # at the end of the line
        x = 0.994 - 0.014 * number
        axes.plot(
            [x, x, x],
            [low, reference.y.value, high],
            color=colour,
            marker="_",
            linewidth=1.2,
            markersize=5,
            transform=axes.get_yaxis_transform(),
        )


def _draw_levels(chart: Chart, axes: Axes) -> None:
    x, y = chart.level
    if x is not None:
        axes.axvline(x, color="0.55", linewidth=0.8)
    if y is not None:
        axes.axhline(y, color="0.55", linewidth=0.8)


def _draw_gaps(chart: Chart, axes: Axes) -> None:
    """Crosses in a strip of their own along the x axis, below everything that was measured."""
    gaps = [(series, gap) for series in chart.series for gap in series.gaps]
    if not gaps:
        return
    axes.autoscale_view()
    axes.autoscale(enable=False)  # the strip is no data
    placed = _placed([(_axes_x(axes, gap), _gap_words(chart, series, gap)) for series, gap in gaps])
    strip = _GAP_ROW * (1 + max(row for row, _ in placed))
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
    axes.set_ylim(high - (high - low) / (1 - strip), high)
    axes.set_yticks(ticks)
    axes.fill([0, 1, 1, 0], [0, 0, strip, strip], transform=axes.transAxes, color="0.95", linewidth=0, zorder=0.5)
    for (series, gap), (row, right) in zip(gaps, placed, strict=True):
        _cross(axes, (_axes_x(axes, gap), _GAP_ROW * (row + 0.5)), series, _gap_words(chart, series, gap), right)
    axes.plot([], [], color="0.2", label=_MISSING, **_CROSS)


def _gap_words(chart: Chart, series: Series, gap: Gap) -> str:
    return f"{series.label}: {gap.text}" if len(chart.series) > 1 else gap.text


def _axes_x(axes: Axes, gap: Gap) -> float:
    """Where a cross stands, as a share of the axes' width."""
    if gap.x is None:
        return 0.015
    return float(axes.transAxes.inverted().transform(axes.transData.transform((gap.x, axes.get_ylim()[1])))[0])


def _placed(wanted: Sequence[tuple[float, str]]) -> list[tuple[int, bool]]:
    """(row, whether the words stand right of the cross), so that no words lie on others."""
    taken: list[list[tuple[float, float]]] = []
    found = []
    for x, words in wanted:
        width = 0.03 + _GAP_LETTER * len(words)
        right = x + width < 1 or x < 0.5
        span = (x - 0.015, x + width) if right else (x - width, x + 0.015)
        free = (row for row, spans in enumerate(taken) if all(span[1] < a or b < span[0] for a, b in spans))
        row = next(free, len(taken))
        taken += [[]] if row == len(taken) else []
        taken[row].append(span)
        found.append((row, right))
    return found


def _cross(axes: Axes, at: tuple[float, float], series: Series, words: str, right: bool) -> None:
    held = axes.transAxes
    colour = COLOURS[series.look % len(COLOURS)]
    axes.plot([at[0]], [at[1]], color=colour, transform=held, clip_on=False, zorder=5, **_CROSS)
    side = {"xytext": (8, 0), "ha": "left"} if right else {"xytext": (-8, 0), "ha": "right"}
    axes.annotate(words, at, xycoords=held, textcoords="offset points", va="center", fontsize=7.5, color="0.2", **side)


def _draw_stacks(chart: Chart, axes: Axes) -> None:
    """Parts of a whole, one bar under the other in the order of the cells."""
    names = list(next(one.parts for one in chart.stacks if one.parts is not None))
    widest = max(sum(one.parts.values()) for one in chart.stacks if one.parts is not None)
    for at, name in enumerate(names):
        rows = [(row, one.parts) for row, one in enumerate(chart.stacks) if one.parts is not None]
        axes.barh(
            [row for row, _ in rows],
            [parts[name] for _, parts in rows],
            left=[sum(list(parts.values())[:at]) for _, parts in rows],
            color=PARTS[at % len(PARTS)],
            hatch=HATCHES[at % len(HATCHES)],
            edgecolor="white",
            height=0.68,
            label=name,
        )
    for row, stack in enumerate(chart.stacks):
        if stack.parts is None:
            axes.barh(row, widest, facecolor="none", edgecolor="0.6", hatch="//", height=0.68)
            axes.text(widest / 2, row, " missing ", **_NOTICE)
        else:
            total = sum(stack.parts.values())
            axes.text(total + widest * 0.01, row, f"{total:.2f}", va="center", fontsize=8.5)
    axes.set_yticks(range(len(chart.stacks)), [one.label for one in chart.stacks])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, widest * 1.1)
    axes.set_xlabel(chart.x_label)


def _arms(found: list[Interval | None] | list[Interval]) -> list[list[float]]:
    """Lengths below and above; 0 where there is no interval."""
    known = [(0.0, 0.0) if one is None else _arm(one) for one in found]
    return [[low for low, _ in known], [high for _, high in known]]


def _arm(one: Interval) -> tuple[float, float]:
    return (0.0, 0.0) if one.low is None or one.high is None else (one.value - one.low, one.high - one.value)
