"""The figures of cells: intervals over seeds, bands over windows, ratios paired by slot. Everything a report prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mtrun.runtime.acceptance.counts import pooled
from mtrun.runtime.acceptance.rates import accepted_by_depth, rates
from mtrun.runtime.measure.figures import Read, Window, contended, decode_speed, ms_per_cycle, place_means
from mtrun.runtime.measure.stats import (
    Band,
    Interval,
    band,
    interval_of,
    paired_difference,
    paired_ratio,
    t_interval,
)
from mtrun.runtime.report.runs import Run, Slot

SPLIT = ("draft", "verify", "rows", "judge", "commit", "rest")  # in the order of a cycle
RATES = ("tokens_per_cycle", "draft_acceptance", "deferral_rate", "kept_draft_rate", "mean_divergence")

Slots = Mapping[Slot, Window]


def _milliseconds(window: Window, key: str) -> float | None:
    return None if window.get(key) is None else 1e3 * window[key]


def _mebibytes(window: Window, key: str) -> float | None:
    found = (window.get("memory") or {}).get(key)
    return None if found is None else found / 2**20


READERS: Mapping[str, Read] = MappingProxyType(
    {
        "decode_tok_s": decode_speed,
        "ms_per_cycle": ms_per_cycle,
        "prefill_tok_s": lambda window: window.get("prefill_tok_s"),
        "ttft_ms": lambda window: _milliseconds(window, "ttft_seconds"),
        "rss_mib": lambda window: _mebibytes(window, "rss_bytes"),
        "mlx_peak_mib": lambda window: _mebibytes(window, "mlx_peak_bytes"),
        "nll": lambda window: window.get("nll"),
    }
)


@dataclass(frozen=True)
class CellFigures:
    """One cell, at one context of a ladder or over the whole run. Absent figures are left out of the mappings."""

    cell: str
    windows: int
    seeds: int
    expected: int  # windows that were asked for
    contended: int
    means: Mapping[str, Interval]  # READERS and RATES by name: 95 % t intervals over seeds
    bands: Mapping[str, Band]  # READERS by name, over windows
    to_plain: Interval | None  # ratio of decode tok/s
    to_exact: Interval | None
    nll_gap: Interval | None  # to the plain cell, signed, nats a token
    depths: tuple[Interval, ...]  # [D] share of cycles that kept the draft at depth i + 1
    split: Mapping[str, float] | None  # mean ms of a cycle's phases


def cell_figures(run: Run, cell: str, plain: str | None, exact: str | None, level: int | None = None) -> CellFigures:
    """The figures of a cell; `plain` and `exact` are the cells it is compared with, `level` narrows to one context."""
    own = _at(run, cell, level)
    windows = [own[slot] for slot in sorted(own)]
    values = {name: [one for window in windows if (one := read(window)) is not None] for name, read in READERS.items()}
    means = {name: interval_of(place_means(windows, read)) for name, read in READERS.items()}
    means |= {name: _pooled_by_seed(own, name) for name in RATES}
    others = {name: _at(run, name, level) for name in (plain, exact) if name}
    return CellFigures(
        cell,
        len(own),
        len({slot.seed for slot in own}),
        sum(level is None or slot.level == level for slot in run.expected),
        contended(windows),
        {name: one for name, one in means.items() if one is not None},
        {name: one for name, found in values.items() if (one := band(found)) is not None},
        _ratio(own, others.get(plain or "")),
        _ratio(own, others.get(exact or "")),
        _gap(own, others.get(plain or "")),
        _depths(own),
        _split(windows),
    )


def _at(run: Run, cell: str, level: int | None) -> Slots:
    return {slot: window for slot, window in run.counted[cell].items() if level is None or slot.level == level}


def _ratio(own: Slots, other: Slots | None) -> Interval | None:
    if not other:
        return None
    return paired_ratio(place_means(own.values(), decode_speed), place_means(other.values(), decode_speed))


def _gap(own: Slots, other: Slots | None) -> Interval | None:
    read = READERS["nll"]
    return paired_difference(place_means(own.values(), read), place_means(other.values(), read)) if other else None


def _by_seed(own: Slots) -> list[list[Window]]:
    groups: dict[int, list[Window]] = {}
    for slot in sorted(own):
        groups.setdefault(slot.seed, []).append(own[slot])
    return list(groups.values())


def _pooled_by_seed(own: Slots, name: str) -> Interval | None:
    """The mean over seeds of a rate that is formed from each seed's summed counters."""
    found = [rates(pooled(group))[name] for group in _by_seed(own)]
    return t_interval([one for one in found if isinstance(one, float)])


def _depths(own: Slots) -> tuple[Interval, ...]:
    found = [one for group in _by_seed(own) if (one := accepted_by_depth(pooled(group)))]
    deepest = max(map(len, found), default=0)
    columns = ([one[at] if at < len(one) else 0.0 for one in found] for at in range(deepest))
    return tuple(one for column in columns if (one := t_interval(column)) is not None)


def _split(windows: Sequence[Window]) -> Mapping[str, float] | None:
    told = [window["split_ms"] for window in windows if window.get("split_ms")]
    return {name: sum(one.get(name, 0.0) for one in told) / len(told) for name in SPLIT} if told else None
