"""`micro.json`, what a micro run measured: every case with its rounds, written whole after each part.

{schema, plan_sha256, cases [{cell, session, group, name, about{}, load, skipped, error, iterations, n, median, min,
max, iqr, rounds [seconds]}]}. A round is the mean time of one call over `iterations` calls, in seconds to the
picosecond; `skipped` says what a machine has not, `error` what went wrong, and both leave the figures null and `rounds`
empty.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure.store import read_json

FILE, SCHEMA = "micro.json", "mtrun.micro/1"
KIND = "micro"
FIGURES = ("n", "median", "min", "max", "iqr")
_DIGITS = 12  # of a second, as stored


def stored(rounds: Sequence[float]) -> list[float]:
    """Rounds as they are kept."""
    return [round(seconds, _DIGITS) for seconds in rounds]


def spread(rounds: Sequence[float]) -> dict[str, Any]:
    """FIGURES of the rounds of a case, in seconds; the quartiles of iqr are inclusive. Nulls without rounds."""
    if not rounds:
        return {**dict.fromkeys(FIGURES), "n": 0}
    low, _, high = statistics.quantiles(rounds, n=4, method="inclusive") if len(rounds) > 1 else (0.0, 0.0, 0.0)
    told = {"median": statistics.median(rounds), "min": min(rounds), "max": max(rounds), "iqr": high - low}
    return {"n": len(rounds), **{name: round(value, _DIGITS) for name, value in told.items()}}


def read_cases(folder: Path, plan_sha256: str) -> list[dict[str, Any]]:
    """The cases of a run's folder, none where nothing was measured yet. Raises ConfigurationError."""
    path = folder / FILE
    if not path.is_file():
        return []
    found = read_json(path, SCHEMA)
    if found.get("plan_sha256") != plan_sha256 or not isinstance(found.get("cases"), list):
        raise ConfigurationError(f"{path} is of another plan than its run.json: measure again.")
    return found["cases"]


def microseconds(value: float) -> tuple[float, int]:
    """Seconds as microseconds, and how many decimals of them are worth printing."""
    found = round(value * 1e6, _DIGITS - 6)
    return found, 2 if found < 100 else 1 if found < 1000 else 0


def problem(case: Mapping[str, Any]) -> str | None:
    """Why a case has no figures, None where it has."""
    return case["error"] or case["skipped"]
