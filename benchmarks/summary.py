"""What a receipt says: figures of each cell, comparisons between cells, and the windows that may not be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mtrun.runtime.acceptance.counts import Counts, pooled
from mtrun.runtime.acceptance.rates import Rate, rates
from mtrun.runtime.measure.digest import ids_digest
from mtrun.runtime.measure.stats import Band, Interval, Values, band, interval_of, paired_difference, paired_ratio

Window = Mapping[str, Any]
CONTENTION = 1.1  # wall / CPU seconds of the decode phase above which something else had the core


@dataclass(frozen=True)
class CellSummary:
    """One cell on one side. Intervals are over seed means, the band over windows, rates over summed counters."""

    side: str
    cell: str
    windows: int
    speed: Band | None  # decode tok/s
    to_plain: Interval | None  # ratio of decode tok/s to the plain cell of the same side
    to_exact: Interval | None
    tokens_per_cycle: Interval | None  # None for plain decoding: there are no cycles
    ms_per_cycle: Interval | None  # decode time of one target forward with all that belongs to it
    rates: Mapping[str, Rate]
    nll: Interval | None  # nats a token
    nll_gap: Interval | None  # to the plain cell, signed
    contended: int  # windows with wall / CPU above CONTENTION
    digest: str | None  # over the windows' token ids in the order (seed, prompt)


def usable(data: Mapping[str, Any]) -> tuple[list[Window], list[tuple[Window, str]]]:
    """Windows that count, and those refused with the reason. Warm-up windows are in neither."""
    counted, refused = [], []
    for window in data["windows"]:
        if window["warm_up"]:
            continue
        problem = refusal(window, data["plan"]["tokens"], data["cells"][f"{window['side']}/{window['cell']}"])
        if problem:
            refused.append((window, problem))
        else:
            counted.append(window)
    return counted, refused


def refusal(window: Window, tokens: int, cell: Mapping[str, Any]) -> str | None:
    """Why a window may not be used: it is not what was asked for."""
    states = {lane: state for lane, (state, _) in window["verdicts"].items()}
    before = {lane["lane"]: lane["state"] for lane in cell["audit_before"]["lanes"]}
    changed = [lane for lane in before if (before[lane] == "declined") != (states.get(lane) == "declined")]
    blas = states.get("cpu_blas")
    wanted = "engaged" if window["side"] == "armed" else "declined"
    if len(window["ids"]) != tokens:
        return f"{len(window['ids'])} tokens instead of {tokens}"
    if changed:
        return f"the verdict of {', '.join(changed)} changed after start-up"
    if blas != wanted:
        return f"cpu_blas is {blas}, not {wanted}"
    if problems := Counts(**window["counts"]).identities():
        return problems[0]
    return None


def speed(window: Window) -> float:
    """Decode tok/s: the first token belongs to prefill."""
    return (len(window["ids"]) - 1) / window["decode_seconds"]


def figure(windows: list[Window], read: Callable[[Window], float | None]) -> Values:
    """One figure of each window by (seed, prompt), where it has one."""
    found = {(window["seed"], window["prompt"]): read(window) for window in windows}
    return {key: value for key, value in found.items() if value is not None}


def tokens_per_cycle(window: Window) -> float | None:
    cycles = window["counts"]["cycles"]
    return 1 + window["counts"]["accepted"] / cycles if cycles else None


def ms_per_cycle(window: Window) -> float | None:
    calls = window["counts"]["verify_calls"]
    return 1e3 * window["decode_seconds"] / calls if calls else None


def contention(window: Window) -> float:
    """Wall over CPU seconds while decoding; below one where several threads ran."""
    return window["decode_seconds"] / max(window["decode_cpu_seconds"], 1e-9)


def by_cell(windows: list[Window]) -> dict[tuple[str, str], list[Window]]:
    """Windows by (side, cell), each list in the order (seed, prompt)."""
    found: dict[tuple[str, str], list[Window]] = {}
    for window in sorted(windows, key=lambda one: (one["seed"], one["prompt"])):
        found.setdefault((window["side"], window["cell"]), []).append(window)
    return found


def summarise(side: str, cell: str, cells: Mapping[tuple[str, str], list[Window]]) -> CellSummary:
    """The figures of one cell; one without windows has nulls."""
    own = cells.get((side, cell), [])
    plain, exact = cells.get((side, "plain"), []), cells.get((side, "exact"), [])
    speeds = figure(own, speed)
    return CellSummary(
        side=side,
        cell=cell,
        windows=len(own),
        speed=band(list(speeds.values())),
        to_plain=paired_ratio(speeds, figure(plain, speed)),
        to_exact=paired_ratio(speeds, figure(exact, speed)),
        tokens_per_cycle=interval_of(figure(own, tokens_per_cycle)),
        ms_per_cycle=interval_of(figure(own, ms_per_cycle)),
        rates=rates(pooled(own)),
        nll=interval_of(figure(own, lambda one: one["nll"])),
        nll_gap=paired_difference(figure(own, lambda one: one["nll"]), figure(plain, lambda one: one["nll"])),
        contended=sum(contention(window) > CONTENTION for window in own),
        digest=ids_digest([token for window in own for token in window["ids"]]) if own else None,
    )


def lane_effect(cell: str, cells: Mapping[tuple[str, str], list[Window]]) -> Interval | None:
    """Ratio of decode tok/s with cpu_blas armed to declined, over the windows that both sides have."""
    armed, declined = (figure(cells.get((side, cell), []), speed) for side in ("armed", "declined"))
    return paired_ratio(armed, declined)


def idle_lanes(windows: list[Window]) -> list[str]:
    """Lanes that were armed in these windows and engaged in none."""
    states: dict[str, set[str]] = {}
    for window in windows:
        for lane, (state, _) in window["verdicts"].items():
            states.setdefault(lane, set()).add(state)
    return [lane for lane, found in states.items() if found == {"armed"}]
