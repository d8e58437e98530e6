"""What a run says, computed from its folder alone: figures of each cell, comparisons, and what is not there.

Intervals are over seed means; the band (median, smallest, largest, how many) describes windows and compares nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mtrun.runtime.acceptance.counts import pooled
from mtrun.runtime.acceptance.rates import rates
from mtrun.runtime.bench.folder import RunFolder, split_of
from mtrun.runtime.bench.plan import Plan, schedule
from mtrun.runtime.measure.abab import compare
from mtrun.runtime.measure.digest import ids_digest
from mtrun.runtime.measure.figures import (
    Read,
    Window,
    contended,
    decode_speed,
    ms_per_cycle,
    place_means,
    tokens_per_cycle,
)
from mtrun.runtime.measure.stats import Interval, band, interval_of, paired_difference, paired_ratio
from mtrun.runtime.measure.store import read_setting

SCHEMA = "mtrun.bench.summary/1"
FALLEN = ("proof_failed", "install_failed")  # codes of a lane that was wanted and is not in place
CAP = "the cap is"  # in the sentence of a window over the memory cap


def summarise(path: Path) -> dict[str, Any]:
    """The summary of a run's folder as JSON types. Raises ConfigurationError."""
    folder = RunFolder.read(path)
    plan, windows = folder.plan, folder.windows()
    kept = usable(windows)
    rows = [
        row
        for context in plan.contexts or (None,)
        for row in _rows(plan, [one for one in kept if one["context_asked"] == context], windows, context)
    ]
    lost = _missing(folder, windows)
    compared = _abab(plan, kept) if plan.kind == "abab" else None
    return {
        "schema": SCHEMA,
        "kind": plan.kind,
        "plan_sha256": folder.data["plan_sha256"],
        "tokens": plan.tokens,
        "seeds": list(plan.seeds),
        "cells": rows,
        "abab": compared,
        "windows": {
            "counted": len(kept),
            "planned": len(schedule(plan)),
            "warm_up": sum(window["warm_up"] for window in windows),
            "contended": contended(kept),
        },
        "unequal_n": _unequal(rows),
        "fallen_lanes": _fallen(folder),
        "skipped": {name: cell["skipped"] for name, cell in folder.data["cells"].items() if cell["skipped"]},
        "missing": lost,
    }


def usable(windows: Sequence[Window]) -> list[Window]:
    """Windows that count."""
    return [one for one in windows if not (one["warm_up"] or one["error"] or one["refused"])]


def incomplete(summary: Mapping[str, Any]) -> bool:
    """Whether anything is missing that was not left out on purpose, by the memory cap."""
    return bool(summary["skipped"]) or any(CAP not in one["reason"] for one in summary["missing"])


def _rows(plan: Plan, kept: list[Window], windows: list[dict[str, Any]], context: int | None) -> list[dict[str, Any]]:
    """One row for each cell at one context, in the plan's order; a cell without windows has nulls."""
    by_cell = {cell.name: [one for one in kept if one["cell"] == cell.name] for cell in plan.cells}
    return [
        {"cell": cell.name, "label": cell.label, "context": context}
        | _figures(by_cell[cell.name], by_cell.get("plain", []), by_cell.get("exact", []))
        | {"split_ms": split_of(windows, cell.name)}
        for cell in plan.cells
    ]


def _figures(own: list[Window], plain: list[Window], exact: list[Window]) -> dict[str, Any]:
    own = sorted(own, key=lambda one: (one["seed"], one["prompt"], one["round"]))
    speeds, nll = place_means(own, decode_speed), place_means(own, lambda one: one["nll"])
    described = band([decode_speed(window) for window in own])
    counts = pooled(own)
    return {
        "windows": len(own),
        "seeds": len({window["seed"] for window in own}),
        "speed": described and asdict(described),
        "to_plain": _json(paired_ratio(speeds, place_means(plain, decode_speed))),
        "to_exact": _json(paired_ratio(speeds, place_means(exact, decode_speed))),
        "tokens_per_cycle": _json(interval_of(place_means(own, tokens_per_cycle))),
        "ms_per_cycle": _json(interval_of(place_means(own, ms_per_cycle))),
        "prefill_tok_s": _json(interval_of(place_means(own, lambda one: one["prefill_tok_s"]))),
        "ttft_ms": _json(interval_of(place_means(own, lambda one: _times(1e3, one["ttft_seconds"])))),
        "token_ms": _medians(own, "token_ms"),
        "cycle_ms": _medians(own, "cycle_ms"),
        "counts": asdict(counts),
        "rates": rates(counts),
        "nll": _json(interval_of(nll)),
        "nll_gap": _json(paired_difference(nll, place_means(plain, lambda one: one["nll"]))),
        "memory": {name: _largest(own, name) for name in ("rss_bytes", "rss_peak_bytes", "mlx_peak_bytes")},
        "contended": contended(own),
        "digest": ids_digest([token for window in own for token in window["ids"]]) if own else None,
    }


def _abab(plan: Plan, kept: list[Window]) -> dict[str, Any] | None:
    """Both factors of the speed beside the speed itself; None before both sides have a window in common."""
    assert plan.a is not None
    assert plan.b is not None
    assert plan.margin is not None
    a, b = ([one for one in kept if one["cell"] == side] for side in (plan.a, plan.b))
    found = compare(place_means(a, decode_speed), place_means(b, decode_speed), plan.margin)
    if found is None:
        return None
    reads: dict[str, Read] = {"tokens_per_cycle": tokens_per_cycle, "ms_per_cycle": ms_per_cycle}
    factors = {name: _json(paired_ratio(place_means(b, read), place_means(a, read))) for name, read in reads.items()}
    return {"a": plan.a, "b": plan.b, **found.to_json(), "factors": factors}


def _missing(folder: RunFolder, windows: Sequence[Window]) -> list[dict[str, Any]]:
    """Every planned window that does not count, with the reason."""
    held = {_place(one): one for one in windows if not one["warm_up"]}
    found = []
    for slot in schedule(folder.plan):
        window = held.get((slot.cell, slot.seed, slot.prompt, slot.round, slot.context))
        skipped = folder.data["cells"][slot.cell]["skipped"]
        if window is None:
            reason = f"skipped: {skipped}" if skipped else "not measured"
        elif window["error"]:
            reason = f"died: {window['error']}"
        elif window["refused"]:
            reason = f"refused: {window['refused']}"
        else:
            continue
        where = {"cell": slot.cell, "seed": slot.seed, "prompt": slot.prompt, "round": slot.round}
        found.append({**where, "context_asked": slot.context, "reason": reason})
    return found


def _fallen(folder: RunFolder) -> dict[str, dict[str, str]]:
    """cell -> lane -> reason, for lanes that the auto-arm chose and that failed: a speed without them is another's."""
    found: dict[str, dict[str, str]] = {}
    for name, cell in folder.data["cells"].items():
        if cell["setting"] is not None:
            for lane in read_setting(folder.path, cell["setting"])["audit"]["lanes"]:
                if lane["code"] in FALLEN:
                    found.setdefault(name, {})[lane["lane"]] = lane["reason"]
    return found


def _place(window: Window) -> tuple[Any, ...]:
    return tuple(window[name] for name in ("cell", "seed", "prompt", "round", "context_asked"))


def _unequal(rows: Sequence[Mapping[str, Any]]) -> dict[str, int] | None:
    """Windows of each row where they are not equally many: such cells are compared over what they share."""
    counts = {_row_name(row): row["windows"] for row in rows}
    return counts if len(set(counts.values())) > 1 else None


def _row_name(row: Mapping[str, Any]) -> str:
    return row["cell"] if row["context"] is None else f"{row['cell']} at {row['context']}"


def _medians(windows: Sequence[Window], name: str) -> dict[str, float] | None:
    """Medians over windows of each window's percentiles."""
    found = [window[name] for window in windows if window[name]]
    return {at: statistics.median(one[at] for one in found) for at in found[0]} if found else None


def _largest(windows: Sequence[Window], name: str) -> int | None:
    return max((window["memory"][name] for window in windows if window["memory"][name] is not None), default=None)


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else factor * value


def _json(found: Interval | None) -> dict[str, Any] | None:
    return found and asdict(found)
