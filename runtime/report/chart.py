"""A chart as data: series of estimates with their intervals, reference lines, and the points that are not there.

Nothing here imports matplotlib. The text alternative is made of the same numbers as the picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from mtrun.runtime.measure.stats import Band, Interval, interval_text

FOLDER = "figures"
SHARE = (0.0, 1.0)  # what a rate can be
BARS = "Points are means over seeds, bars with caps their 95 % t intervals."
CUT = "An interval that is wider than the chart is cut at its edge; the tables have it whole."
_WIDEST = 2.0  # spans of the points that an interval may add on either side of them
PALE = "Pale bars run from the slowest to the fastest window: a description."
Source = tuple[str, str]  # (name of the run, cell)


@dataclass(frozen=True)
class Point:
    """An estimate at x. `across` is the interval of x itself where x was measured too."""

    x: float
    y: Interval
    band: Band | None = None
    across: Interval | None = None


@dataclass(frozen=True)
class Gap:
    """A point that was asked for and is not there: drawn as a cross on the axis. x None: nowhere in particular."""

    x: float | None
    text: str


@dataclass(frozen=True)
class Series:
    """Points of one law. `look` is the number of a colour and marker; hollow markers are predictions.

    `dodge` moves the points sideways (a share of x on a logarithmic axis): bars at one x do not cover each other then.
    """

    label: str
    look: int
    points: tuple[Point, ...]
    gaps: tuple[Gap, ...] = ()
    joined: bool = True
    hollow: bool = False
    dodge: float = 0.0


@dataclass(frozen=True)
class Reference:
    """A law without the chart's x: a horizontal line with its interval."""

    label: str
    look: int
    y: Interval


@dataclass(frozen=True)
class Stack:
    """One horizontal bar: parts by name, None where the cell has none."""

    label: str
    parts: Mapping[str, float] | None


@dataclass(frozen=True)
class Chart:
    """One quantity of one pack. `lost` is listed under the picture, `sources` are the cells whose receipts it shows."""

    name: str  # of the file, without its ending
    title: str
    caption: str
    x_label: str
    y_label: str
    series: tuple[Series, ...] = ()
    references: tuple[Reference, ...] = ()
    stacks: tuple[Stack, ...] = ()
    ticks: Mapping[float, str] = field(default_factory=lambda: MappingProxyType({}))  # empty: chosen by the scale
    log_x: bool = False
    from_zero: bool = False
    within: tuple[float, float] | None = None  # what y can be: an interval may reach beyond, the axis does not
    level: tuple[float | None, float | None] = (None, None)  # thin lines at x and y: where plain decoding stands
    lost: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    digits: int = 3

    @property
    def file(self) -> str:
        return f"{FOLDER}/{self.name}.svg"

    @property
    def y_range(self) -> tuple[float, float]:
        """What the y axis shows: every point and band, and intervals as far as they leave the points apart."""
        points = [point for one in self.series for point in one.points]
        cores = [point.y.value for point in points] + [one.y.value for one in self.references]
        cores += [end for point in points if point.band for end in (point.band.low, point.band.high)]
        cores += [0.0] if self.from_zero else []
        low, high = _reach(cores, [point.y for point in points] + [one.y for one in self.references])
        if self.within:
            low, high = max(low, self.within[0]), min(high, self.within[1])
        return (0.0, high) if self.from_zero else (low, high)

    @property
    def x_range(self) -> tuple[float, float] | None:
        """The same along x, where x was measured."""
        across = [point.across for one in self.series for point in one.points if point.across]
        known = [] if self.level[0] is None else [self.level[0]]
        return _reach([one.value for one in across] + known, across) if across else None

    @property
    def words(self) -> str:
        """The caption, with what the picture cuts off."""
        spans = [(point.y, self.y_range) for one in self.series for point in one.points]
        spans += [(one.y, self.y_range) for one in self.references]
        spans += [(point.across, self.x_range) for one in self.series for point in one.points if point.across]
        cut = any(view and _beyond(found, view) for found, view in spans)
        return f"{self.caption} {CUT}" if cut else self.caption

    @property
    def alt(self) -> str:
        """The chart in words, every number included."""
        parts = [f"{self.title}. {self.y_label} over {self.x_label}."]
        parts += [self._series_words(one) for one in self.series]
        parts += [f"{one.label}: {self._number(one.y)}, a horizontal line." for one in self.references]
        parts += [self._stack_words(one) for one in self.stacks]
        return " ".join(parts)

    def _series_words(self, series: Series) -> str:
        told = [f"{self._place(one)}: {self._number(one.y)}" for one in series.points]
        told += [f"{self._tick(one.x)}: {one.text}" if one.x is not None else one.text for one in series.gaps]
        return f"{series.label}: {'; '.join(told)}."

    def _stack_words(self, stack: Stack) -> str:
        if stack.parts is None:
            return f"{stack.label}: missing."
        total = sum(stack.parts.values())
        parts = ", ".join(f"{name} {value:.2f}" for name, value in stack.parts.items())
        return f"{stack.label}: {parts}, together {total:.2f}."

    def _place(self, point: Point) -> str:
        return self._tick(point.x) if point.across is None else self._number(point.across)

    def _tick(self, x: float) -> str:
        return self.ticks.get(x, f"{x:g}")

    def _number(self, found: Interval) -> str:
        return interval_text(found, self.digits)


def band_text(found: Band | None, digits: int = 2) -> str:
    """`13.23 (11.87-14.21), n 16`; `-` where there is nothing."""
    if found is None:
        return "-"
    return f"{found.median:.{digits}f} ({found.low:.{digits}f}-{found.high:.{digits}f}), n {found.n}"


def _reach(cores: Sequence[float], intervals: Sequence[Interval]) -> tuple[float, float]:
    """Least and greatest of the cores, widened by intervals up to _WIDEST times their span on either side."""
    low, high = min(cores), max(cores)
    room = _WIDEST * max(high - low, 0.05 * max(abs(low), abs(high)), 1e-9)
    ends = [end for one in intervals for end in (one.low, one.high) if end is not None]
    return max(low - room, min([low, *ends])), min(high + room, max([high, *ends]))


def _beyond(found: Interval, view: tuple[float, float]) -> bool:
    return found.low is not None and found.high is not None and (found.low < view[0] or found.high > view[1])


def has_points(series: Sequence[Series]) -> bool:
    """Whether there is anything to draw beside gaps."""
    return any(one.points for one in series)
