"""A summary as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mtrun.runtime.measure.stats import Interval, interval_text

LISTED = 12  # missing windows that are told one by one
HEADERS = (
    "cell",
    "tok/s (min-max, n)",
    "to plain [95 %]",
    "to exact [95 %]",
    "tokens/cycle",
    "ms/cycle",
    "prefill tok/s",
    "TTFT ms",
    "kept drafts",
    "deferred",
    "D_TV",
    "nll gap",
)


def table(summary: Mapping[str, Any]) -> str:
    """Every cell, the comparison of abab, and what is missing."""
    parts = []
    contexts = list(dict.fromkeys(row["context"] for row in summary["cells"]))
    for context in contexts:
        title = [] if context is None else [f"context {context}"]
        rows = [_row(row) for row in summary["cells"] if row["context"] == context]
        parts.append("\n".join([*title, *aligned([HEADERS, *rows])]))
    if summary["abab"] is not None:
        parts.append(_abab(summary["abab"]))
    parts.append("\n".join(_notes(summary)))
    return "\n\n".join(part for part in parts if part)


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    speed, rates = row["speed"], row["rates"]
    shown = "-" if speed is None else f"{speed['median']:.1f} ({speed['low']:.1f}-{speed['high']:.1f}, {speed['n']})"
    return (
        row["cell"],
        shown,
        _interval(row["to_plain"], 2),
        _interval(row["to_exact"], 2),
        _value(row["tokens_per_cycle"], 2),
        _value(row["ms_per_cycle"], 2),
        _value(row["prefill_tok_s"], 0),
        _value(row["ttft_ms"], 1),
        _number(rates["kept_draft_rate"], 3),
        _number(rates["deferral_rate"], 3),
        _number(rates["mean_divergence"], 3),
        _interval(row["nll_gap"], 3, "+"),
    )


def _abab(found: Mapping[str, Any]) -> str:
    flips = found["sign_flip"]
    how = "exact" if flips["exact"] else "drawn"
    margin, narrow = found["margin"], found["equivalence"]
    lines = [
        f"{found['b']} over {found['a']}: {_interval(found['ratio'], 3)} over {found['ratio']['n']} seeds, "
        f"sign-flip p = {flips['p']:.4f} ({flips['flips']} flips, {how})",
        f"margin {margin:.1%}, 90 % interval {_interval(narrow, 3)}: {found['verdict']}",
        *(f"{name}: {_interval(value, 3)}" for name, value in found["factors"].items()),
    ]
    lines += [f"seed {one['seed']}: {one['a']:.1f} {one['b']:.1f} {one['ratio']:.3f}" for one in found["pairs"]]
    return "\n".join(lines)


def _notes(summary: Mapping[str, Any]) -> list[str]:
    windows = summary["windows"]
    lines = [
        f"{windows['counted']} of {windows['planned']} windows of {summary['tokens']} tokens; intervals over "
        f"{len(summary['seeds'])} seeds, minimum and maximum only describe"
    ]
    if windows["contended"]:
        lines.append(f"{windows['contended']} windows shared the processor (decode wall / CPU above 1.1)")
    if summary["unequal_n"]:
        counts = ", ".join(f"{name} {count}" for name, count in summary["unequal_n"].items())
        lines.append(f"unequal numbers of windows: {counts}; cells are compared over what they share")
    fallen: dict[tuple[str, str], list[str]] = {}
    for cell, lanes in summary["fallen_lanes"].items():
        for lane, reason in lanes.items():
            fallen.setdefault((lane, reason), []).append(cell)
    lines += [f"without {lane}: {', '.join(cells)}: {reason}" for (lane, reason), cells in fallen.items()]
    lines += [f"skipped: {name}: {reason}" for name, reason in summary["skipped"].items()]
    lost = [one for one in summary["missing"] if one["cell"] not in summary["skipped"]]
    for one in lost[:LISTED]:
        context = "" if one["context_asked"] is None else f", context {one['context_asked']}"
        lines.append(f"missing: {one['cell']}, seed {one['seed']}, prompt {one['prompt']}{context}: {one['reason']}")
    if len(lost) > LISTED:
        lines.append(f"and {len(lost) - LISTED} more in summary.json")
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of the rows, each column as wide as its longest text."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _interval(found: Mapping[str, Any] | None, digits: int, sign: str = "") -> str:
    return interval_text(None if found is None else Interval(**found), digits, sign)


def _value(found: Mapping[str, Any] | None, digits: int) -> str:
    return _number(None if found is None else found["value"], digits)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
