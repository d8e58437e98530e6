"""What a window, a setting, a run and an answer hold: keys and types, checked by a few lines of plain Python.

A shape is a type or a tuple of types, or one of the classes below. Keys beyond those of a shape are allowed, so that a
schema may grow under one number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

RUNS = MappingProxyType({"mtrun.bench.run/1": "bench", "mtrun.eval.run/1": "eval"})
WINDOW_SCHEMA = "mtrun.window/1"
SETTING_SCHEMA = "mtrun.setting/1"

Shape = Any


@dataclass(frozen=True)
class Maybe:
    """The shape, or null."""

    of: Shape


@dataclass(frozen=True)
class ListOf:
    """A list, each entry of the shape."""

    of: Shape


@dataclass(frozen=True)
class Each:
    """An object with any keys, each value of the shape."""

    of: Shape


@dataclass(frozen=True)
class Keys:
    """An object with these keys at least; those of `optional` are checked where they stand."""

    of: Mapping[str, Shape]
    optional: Mapping[str, Shape] = field(default_factory=dict)


@dataclass(frozen=True)
class Hex:
    """Lower-case hexadecimal digits."""

    digits: int


@dataclass(frozen=True)
class Exactly:
    """One of these values."""

    values: tuple[Any, ...]


NUMBER = (int, float)
IDS = ListOf(int)
SHA = Hex(64)
COUNTS = Keys(
    {
        "cycles": int,
        "drafted": int,
        "positions": int,
        "deferred": int,
        "accepted": int,
        "coin_accepted": int,
        "resamples": int,
        "bonus": int,
        "emitted": int,
        "truncated": int,
        "divergence": NUMBER,
        "accepted_by_depth": IDS,
        "reached_by_depth": IDS,
        "copied": int,
        "copied_positions": int,
        "copied_accepted": int,
        "generated": int,
        "verify_calls": int,
    },
    {"cycles_by_depth": IDS},
)
LAW = Keys({"law": str, "rule": Maybe(str), "parameters": Each(NUMBER), "distribution_exact": bool})
REPORTED_LAW = Keys({**LAW.of, "engaged": bool, "reason": str})
SHADOW = Keys(
    {
        "law": str,
        "rule": Maybe(str),
        "parameters": Each(NUMBER),
        "positions": int,
        "kept": int,
        "deferred": int,
        "expected_keep": NUMBER,
        "keep_rate_predicted": Maybe(NUMBER),
        "per_depth": ListOf(Keys({"positions": int, "expected_keep": NUMBER})),
    }
)
RATES = Keys(
    dict.fromkeys(
        ("draft_acceptance", "deferral_rate", "kept_draft_rate", "tokens_per_cycle", "mean_divergence"), Maybe(NUMBER)
    )
    | {"accepted_by_depth": Maybe(ListOf(NUMBER))}
)
TIMES = Maybe(Keys(dict.fromkeys(("p50", "p95", "p99"), NUMBER)))
# What a window says whether or not it was measured.
HEAD = {
    "schema": Exactly((WINDOW_SCHEMA,)),
    "kind": Exactly(("sweep", "ladder", "abab")),
    "plan_sha256": SHA,
    "cell": str,
    "setting": Maybe(Hex(16)),
    "seed": int,
    "prompt": int,
    "round": Maybe(int),
    "session": int,
    "warm_up": bool,
    "request_seed": int,
    "context": Maybe(int),
    "tokens": int,
    "load": Maybe(ListOf(NUMBER)),
    "cpu_mhz": Maybe(NUMBER),
    "temperature": Maybe(NUMBER),
    "refused": Maybe(str),
    "error": Maybe(str),
}
# What a measured one holds besides; null in one that was refused before it began, or died.
MEASURED = {
    "prompt_digest": SHA,
    "prompt_ids": IDS,
    "ids": IDS,
    "digest": SHA,
    "reason": Exactly(("stop", "length", "cancelled")),
    "law": REPORTED_LAW,
    "counts": COUNTS,
    "notes": ListOf(str),
    "prefill_seconds": NUMBER,
    "ttft_seconds": Maybe(NUMBER),
    "decode_seconds": NUMBER,
    "decode_cpu_seconds": NUMBER,
    "wall_seconds": NUMBER,
    "cpu_seconds": NUMBER,
    "prefill_tok_s": NUMBER,
    "decode_tok_s": NUMBER,
    "cycle_ms": TIMES,
    "token_ms": TIMES,
    "split_ms": Maybe(Each(NUMBER)),
    "rates": RATES,
    "nll": Maybe(NUMBER),
    "memory": Keys({"rss_bytes": int, "rss_peak_bytes": Maybe(int), "mlx_peak_bytes": Maybe(int)}),
    "verdicts": Each(list),
    "shadow": Maybe(Each(SHADOW)),
}
SETTING = Keys(
    {
        "schema": Exactly((SETTING_SCHEMA,)),
        "overrides": ListOf(str),
        "config": Each(dict),
        "config_sha256": SHA,
        "sampler": Keys({"temperature": NUMBER, "top_p": NUMBER, "top_k": int}),
        "law": LAW,
        "provenance": Each(ListOf(str)),
        "warnings": ListOf(str),
        "pack": Keys({"name": str, "family": str, "trunk_identity": Maybe(str), "sha256": Maybe(Each(SHA))}),
        "audit": Keys({"schema": str, "lanes": ListOf(Keys({"lane": str, "state": str, "code": str, "reason": str}))}),
        "code": Keys({"commit": Maybe(str), "changes_sha256": Maybe(SHA), "source_sha256": SHA}),
        "versions": Each(Maybe(str)),
        "machine": Keys({"system": str, "machine": str}),
    },
    # Settings written before the digests of code were kept have none.
    {
        "law_code_sha256": SHA,
        "lanes_code_sha256": Each(SHA),
        "native_sha256": Maybe(SHA),
        "native_sources_sha256": Maybe(SHA),
    },
)
RUN = Keys(
    {
        "schema": Exactly(tuple(RUNS)),
        "kind": str,
        "plan": dict,
        "plan_sha256": SHA,
        "command": ListOf(str),
        "sessions": ListOf(dict),
        "cells": Each(Keys({"label": str, "overrides": ListOf(str), "setting": Maybe(Hex(16)), "skipped": Maybe(str)})),
        "missing": list,
    }
)
_ANSWERED = {
    "seed": int,
    "ids": IDS,
    "digest": SHA,
    "output_tokens": int,
    "counts": COUNTS,
    "law": Keys({"law": str}),
    "decode_seconds": NUMBER,
}
TASK_ANSWER = Keys(
    {**_ANSWERED, "task": str, "family": str, "text": str, "reason": str, "truncated": bool, "ok": bool, "why": str}
)
TEXT_ANSWER = Keys({**_ANSWERED, "prompt": int, "nll": Maybe(NUMBER)})
# A case of a micro run; one without figures says why, and its figures are null.
CASE = Keys(
    {
        "cell": str,
        "session": int,
        "group": str,
        "name": str,
        "about": Each(str),
        "load": Maybe(ListOf(NUMBER)),
        "skipped": Maybe(str),
        "error": Maybe(str),
        "iterations": Maybe(int),
        "n": int,
        **dict.fromkeys(("median", "min", "max", "iqr"), Maybe(NUMBER)),
        "rounds": ListOf(NUMBER),
    }
)


def problems(value: Any, shape: Shape, where: str = "") -> list[str]:
    """What in a JSON value is not of the shape, one clause each, with the key it stands at."""
    match shape:
        case Maybe(of):
            return [] if value is None else problems(value, of, where)
        case ListOf(of):
            return _wrong(value, list, where) or [
                line for at, one in enumerate(value) for line in problems(one, of, f"{where}[{at}]")
            ]
        case Each(of):
            return _wrong(value, dict, where) or [
                line for key, one in value.items() for line in problems(one, of, _at(where, key))
            ]
        case Keys(of, optional):
            return _wrong(value, dict, where) or _keys(value, of, optional, where)
        case Hex(digits):
            fine = isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", value)
            return [] if fine else [f"{where or 'it'} is {_short(value)}, not {digits} hexadecimal digits"]
        case Exactly(values):
            fine = value in values
            return [] if fine else [f"{where or 'it'} is {_short(value)}, not {' or '.join(map(str, values))}"]
    return _wrong(value, shape, where)


def window_problems(window: Any) -> list[str]:
    """The same for a window: a measured one holds every figure, a refused or dead one says which it is."""
    found = problems(window, Keys(HEAD))
    if found:
        return found
    if measured(window):
        return problems(window, Keys(MEASURED))
    stated = window["refused"] or window["error"]
    return [] if stated else ["it holds no reply, and neither refused nor error says why"]


def measured(window: Mapping[str, Any]) -> bool:
    """Whether a window holds a reply."""
    return window.get("ids") is not None


def _keys(value: dict, of: Mapping[str, Shape], optional: Mapping[str, Shape], where: str) -> list[str]:
    absent = [f"{_at(where, key)} is absent" for key in of if key not in value]
    there = {key: shape for key, shape in (*of.items(), *optional.items()) if key in value}
    return absent + [line for key, shape in there.items() for line in problems(value[key], shape, _at(where, key))]


def _wrong(value: Any, kind: type | tuple[type, ...], where: str) -> list[str]:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    fine = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if fine and not (isinstance(value, float) and not math.isfinite(value)):
        return []
    return [f"{where or 'it'} is {_short(value)}, not {' or '.join(_WORDS[one] for one in kinds)}"]


_WORDS = MappingProxyType(
    {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        list: "a list",
        dict: "an object",
    }
)


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
