"""Values and columns as a person reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# What speed and memory are, in the order in which they are shown; a dot leads into an object.
FIGURES = (
    "prefill_tok_s",
    "decode_tok_s",
    "prefill_seconds",
    "ttft_seconds",
    "decode_seconds",
    "decode_cpu_seconds",
    "wall_seconds",
    "cycle_ms",
    "token_ms",
    "split_ms",
    "memory",
    "nll",
)
_LARGE = 10_000


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything in nested objects; an empty object is a value."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def figures(window: Mapping[str, Any]) -> dict[str, float]:
    """Every figure of a window that is a number, by its dotted key: FIGURES, then rates and counters that are not 0."""
    wanted = {name: window.get(name) for name in FIGURES}
    counted = {name: value for name, value in window["counts"].items() if value}
    wanted |= {"rates": window["rates"], "counts": counted}
    return {name: value for name, value in leaves(wanted) if _is_number(value)}


def figure(value: Any) -> str:
    """A number to four digits, whole and large ones whole; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= _LARGE else f"{value:.4g}"


def ratio(left: Any, right: Any) -> str:
    """right / left."""
    return f"{right / left:.3f}" if _is_number(left) and _is_number(right) and left else "-"


def shown(value: Any) -> str:
    """A JSON value in short; of a digest its first digits."""
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{40,64}", value):
        return value[:12]
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 72 else f"{text[:69]}..."


def columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Rows as lines: every column but the last is padded to its widest entry."""
    widths = [*(max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]), 0]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [f"{indent}{line}".rstrip() for line in lines]


def law_text(law: Mapping[str, Any]) -> str:
    """A law with its rule and knobs in a line."""
    knobs = [f"{name} {value:g}" for name, value in law["parameters"].items()]
    exact = "distribution-exact" if law["distribution_exact"] else "not distribution-exact"
    return ", ".join([law["law"], *([law["rule"]] if law["rule"] else []), *knobs, exact])


def decided_by(setting: Mapping[str, Any], key: str) -> str:
    """Who decided a configuration value."""
    source, *text = setting["provenance"].get(key) or ["unknown"]
    return f"{source} ({text[0]})" if text and text[0] else source


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Index of the first token that differs, the shorter length where one reply begins the other; None = equal."""
    at = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    return None if at == len(left) == len(right) else at


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
