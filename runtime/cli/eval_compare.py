"""`mtrun eval compare`: two runs paired answer by answer; refused where more than the law tells them apart."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

WIDTH = 120  # characters of a line of prose
_HEADINGS = ("", "tasks", "A", "B", "B - A", "95 %", "A only", "B only", "McNemar p", "mid-p", "sign-flip p")


@click.command("compare", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("old", metavar="RUN_A", type=click.Path(path_type=Path))
@click.argument("new", metavar="RUN_B", type=click.Path(path_type=Path))
@click.option("--allow-different", is_flag=True, help="Also where more than the law differs; what differs is printed.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def compare(old: Path, new: Path, allow_different: bool, as_json: bool) -> int:
    """Compare two runs of `eval tasks` or of `eval text`: B minus A, paired by task or prompt and seed."""
    from mtrun.runtime.evaluate.compare import UnlikeRunsError, need_scipy, read_run
    from mtrun.runtime.evaluate.compare import compare as compared

    need_scipy()
    runs = read_run(old), read_run(new)
    try:
        found = compared(*runs, allow_different=allow_different)
    except UnlikeRunsError as error:
        for line in error.lines:
            click.echo(line, err=True)
        raise
    if as_json:
        click.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return 0
    if found["different"]:
        click.echo("\n".join(["WARNING: the runs differ in more than their law:", *found["different"], ""]))
    click.echo("\n".join([*_heads(found), *(_tasks(found) if found["kind"] == "tasks" else _text(found))]))
    return 0


def _heads(found: Mapping[str, Any]) -> list[str]:
    lines = [f"{side} {named(run)}" for side, run in zip("AB", found["runs"], strict=True)]
    alone = found["only_old"] + found["only_new"]
    left = f"; {alone} answers have no partner and are left out" if alone else ""
    what = "tasks" if found["kind"] == "tasks" else "texts"
    return [*lines, f"{found['pairs']} pairs of {what} over {found['seeds']} seeds{left}"]


def named(run: Mapping[str, Any]) -> str:
    """A run's folder, its cell and law, and what it lacks."""
    lacks = f", {run['missing']} answers missing" if run["missing"] else ""
    return f"{run['folder']}: {run['cell']}, {run['label']}{lacks}"


def _tasks(found: Mapping[str, Any]) -> list[str]:
    total = found["total"]
    rows = [_row("all", total), *(_row(name, one) for name, one in found["by_family"].items())]
    low, high, n = (total["difference"][key] for key in ("low", "high", "n"))
    said = (
        f"pass@1 is strict: a truncated answer is wrong. {n} tasks exclude a true difference below {low:+.3f} and one "
        f"above {high:+.3f} (half-width {total['half_width']:.3f}); with as many differing answers a difference of "
        f"{total['detectable']:.3f} would be found with {found['method']['power']:.0%} power. "
        f"Interval: {found['method']['interval']}. Sign-flip: {total['sign_flip']['method']}. "
        "p values of families are not corrected for their number."
    )
    if found["seeds"] > 1:
        said += " McNemar takes every answer for itself; answers to one task hang together, so read the sign-flip p."
    return [*_aligned([_HEADINGS, *rows]), *textwrap.wrap(said, WIDTH)]


def _row(name: str, one: Mapping[str, Any]) -> list[str]:
    gap, test = one["difference"], one["mcnemar"]
    return [
        name,
        str(one["tasks"]),
        f"{one['old']:.3f}",
        f"{one['new']:.3f}",
        f"{gap['value']:+.3f}",
        f"[{gap['low']:+.3f}, {gap['high']:+.3f}]",
        str(test["only_old"]),
        str(test["only_new"]),
        _p(test["exact"]),
        _p(test["mid"]),
        _p(one["sign_flip"]["p"]),
    ]


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"


def _text(found: Mapping[str, Any]) -> list[str]:
    from mtrun.runtime.evaluate.text_measures import DEFINITIONS

    rows = [
        [name, figure(one["old"]), figure(one["new"]), *gap(one["difference"])]
        for name, one in found["figures"].items()
    ]
    told = [f"{name}: {DEFINITIONS[name]}" for name in found["figures"]]
    note = f"95 %: {found['method']['interval']}. A lower nll is not better: what drops unlikely tokens lowers it too."
    return [*_aligned([("", "A", "B", "B - A", "95 %"), *rows]), *textwrap.wrap(note, WIDTH), *told]


def figure(value: float | None) -> str:
    """A figure of a text, or n/a."""
    return "n/a" if value is None else f"{value:.4f}"


def gap(found: Mapping[str, Any] | None) -> tuple[str, str]:
    """A signed difference and its interval."""
    if found is None:
        return "n/a", ""
    bounds = "one seed" if found["low"] is None else f"[{found['low']:+.4f}, {found['high']:+.4f}]"
    return f"{found['value']:+.4f}", bounds


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
