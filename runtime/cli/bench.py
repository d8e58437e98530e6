"""`mtrun bench`: speed of one or many configurations, in paired windows, kept one file a window."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mtrun.runtime.cli.hydra_flags import complete_override
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure.abab import DEFAULT_MARGIN

if TYPE_CHECKING:
    from mtrun.runtime.bench.plan import Plan

ROUNDS = {"abab": 2}  # elsewhere once
INTERRUPTED = 130
# Options that micro has; it measures no pack, so every other one would be without effect.
MICRO = ("protocol", "cells", "rounds", "seconds", "out", "resume", "busy_ok")


def _list_of_numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """`1,2,8` and `1k,2k` (1024 each)."""
    if value is None:
        return None
    found = []
    for text in value.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})(k?)\s*", text, re.IGNORECASE)
        if match is None:
            raise ConfigurationError(f"{param.opts[0]} {value!r} cannot be read: write numbers such as 1k,2k or 3,5,8")
        found.append(int(match.group(1)) * (1024 if match.group(2) else 1))
    if len(set(found)) < len(found):
        raise ConfigurationError(f"{param.opts[0]} {value!r} names a number twice: give each once")
    return tuple(found)


def _bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    from mtrun.runtime.config.size import parse_bytes

    try:
        return None if value is None else parse_bytes(value)
    except ValueError as error:
        raise ConfigurationError(f"--memory-cap: {error}") from error


def _what() -> list[Callable[[Any], Any]]:
    """Options that say what is measured."""
    return [
        click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_override),
        click.option("--multirun", "-m", is_flag=True, help="Measure every combination of comma lists."),
        click.option(
            "--config-dir", "-cd", type=click.Path(path_type=Path), help="A folder with profiles of your own."
        ),
        click.option("--protocol", type=click.Choice(["sweep", "ladder", "abab", "micro"]), default="sweep"),
        click.option(
            "--cells", metavar="standard|A,B", help="Standard cells: plain, exact, typical-0.2, ...; micro: parts."
        ),
        click.option("--cell", "described", multiple=True, metavar='"NAME=WORDS"', help="One more cell, as typed."),
        click.option("--depth", type=click.IntRange(1, 8), default=3, show_default=True, help="Of standard cells."),
        click.option("--a", metavar='"WORDS"', help="abab: words or the name of a standard cell."),
        click.option("--b", metavar='"WORDS"', help="abab: what is compared with it."),
        click.option(
            "--margin", type=click.FloatRange(0, 1, min_open=True), help="abab: up to what two speeds are equal (0.02)."
        ),
        click.option("--contexts", callback=_list_of_numbers, metavar="1k,2k", help="ladder: tokens of the prompts."),
        click.option(
            "--memory-cap", callback=_bytes, metavar="SIZE", help="Windows estimated above it are only listed."
        ),
        click.option("--cascade-threshold", metavar="X", help="Another name of cascade.alpha."),
        click.option("--cascade-rule", metavar="RULE", help="Another name of cascade.rule."),
        click.option("--typical-threshold", metavar="X", help="Another name of typical.threshold."),
        click.option("--shadow", metavar='"WORDS"', help="Laws that watch every window; costs time in each."),
    ]


def _how() -> list[Callable[[Any], Any]]:
    """Options that say how much is measured, and where it goes."""
    return [
        click.option(
            "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the run."
        ),
        click.option("--seeds", type=click.IntRange(1, 1000), default=8, show_default=True, help="Six is the least."),
        click.option("--seed-list", callback=_list_of_numbers, metavar="A,B", help="These seeds instead."),
        click.option("--prompts", type=click.Path(path_type=Path), help="User turns, one a line."),
        click.option("--per-seed", type=click.IntRange(1), default=1, show_default=True, help="Prompts of each seed."),
        click.option(
            "--rounds",
            type=click.IntRange(1),
            help="Repeats, averaged within a seed (abab: 2, else 1); micro: least of a case (5).",
        ),
        click.option(
            "--seconds", type=click.FloatRange(0, 3600, min_open=True), help="micro: how long a case is timed (1)."
        ),
        click.option("--tokens", type=click.IntRange(2), default=64, show_default=True, help="Of every window."),
        click.option("--resume", is_flag=True, help="Measure only what the folder lacks."),
        click.option("--busy-ok", is_flag=True, help="Measure on a busy machine."),
        click.option("--nll/--no-nll", default=True, help="Score each text afterwards."),
        click.option("--split/--no-split", default=True, help="One more window a cell that times parts of a cycle."),
    ]


def _options(function: Callable[..., int]) -> Callable[..., int]:
    for decorator in reversed([*_what(), *_how()]):
        function = decorator(function)
    return function


@click.command("bench", context_settings={"help_option_names": ["-h", "--help"]})
@_options
def bench(out: Path, resume: bool, busy_ok: bool, config_dir: Path | None, **options: Any) -> int:
    """Measure speed: cells side by side under the same seeds, every window a file of its own."""
    if options["protocol"] == "micro":
        return _micro(out, resume, busy_ok, options)
    if options.pop("seconds") is not None:
        raise ConfigurationError("--seconds belongs to micro: add --protocol micro")
    from mtrun.runtime.bench.folder import SUMMARY, RunFolder
    from mtrun.runtime.bench.runner import Runner
    from mtrun.runtime.bench.summary import incomplete, summarise
    from mtrun.runtime.bench.table import table
    from mtrun.runtime.measure.store import write_json

    if find_spec("scipy") is None:
        raise ConfigurationError("bench needs scipy for its intervals: pip install 'mtrun[bench]'")
    names = ("cascade_threshold", "cascade_rule", "typical_threshold")
    typed = {name: options.pop(name) for name in names}
    aliases = [f"--{name.replace('_', '-')}={value}" for name, value in typed.items() if value is not None]
    plan = plan_of(**{**options, "overrides": (*aliases, *options["overrides"])})
    folder = (RunFolder.resume if resume else RunFolder.start)(out, plan, sys.argv[1:])
    machine = _looked(busy_ok)
    Runner(folder, _say, config_dir).measure(machine)
    summary = summarise(out)
    write_json(out / SUMMARY, summary)
    click.echo(table(summary))
    return 1 if incomplete(summary) else 0


def _looked(busy_ok: bool) -> dict[str, Any]:
    """What the machine does before anything is measured, with warnings said. Raises BusyError."""
    from mtrun.runtime.bench import preflight

    machine = preflight.look()
    for sentence in preflight.check(machine, busy_ok):
        _say(f"mtrun: warning: {sentence}")
    return machine


def _micro(out: Path, resume: bool, busy_ok: bool, options: dict[str, Any]) -> int:
    """Times parts of mtrun alone. Raises ConfigurationError, before anything is written, for options of the others."""
    from mtrun.runtime.bench.micro.folder import MicroFolder, MicroPlan
    from mtrun.runtime.bench.micro.runner import check_timer, measure
    from mtrun.runtime.bench.micro.table import incomplete, table

    idle = _idle(options["overrides"])
    if idle:
        raise ConfigurationError(f"micro times parts of mtrun, and none of them reads {idle[0]}: drop it")
    check_timer()
    sizes = {name: options[name] for name in ("rounds", "seconds") if options[name] is not None}
    plan = MicroPlan.of_parts(None if options["cells"] is None else options["cells"].split(","), **sizes)
    folder = (MicroFolder.resume if resume else MicroFolder.start)(out, plan, sys.argv[1:])
    machine = _looked(busy_ok)
    try:
        measure(folder, machine, _say)
    except KeyboardInterrupt:
        _say(f"mtrun: interrupted: {out} holds the parts that were measured, and --resume completes it")
        return INTERRUPTED
    cases = folder.cases()
    click.echo(table(folder.data, cases))
    return 1 if incomplete(folder.data, cases) else 0


def _idle(words: tuple[str, ...]) -> list[str]:
    """What was typed and means nothing to micro: words, then options."""
    context = click.get_current_context()
    typed = [
        param
        for param in context.command.params
        if isinstance(param, click.Option)
        and context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    ]
    return [*words, *(param.opts[0] for param in typed if param.name not in MICRO)]


def plan_of(
    *,
    overrides: tuple[str, ...],
    multirun: bool,
    protocol: str,
    cells: str | None,
    described: tuple[str, ...],
    depth: int,
    a: str | None,
    b: str | None,
    margin: float | None,
    contexts: tuple[int, ...] | None,
    seeds: int,
    seed_list: tuple[int, ...] | None,
    prompts: Path | None,
    rounds: int | None,
    **given: Any,
) -> Plan:
    """The plan that the options describe. Raises ConfigurationError."""
    from mtrun.runtime.bench.cells import cells_of, combinations, named_cells
    from mtrun.runtime.bench.plan import Plan
    from mtrun.runtime.bench.prompts import SHIPPED, read_prompts

    _check(protocol, multirun, cells, described, a, b, margin, contexts)
    jobs, warnings = combinations(overrides, multirun)
    for sentence in warnings:
        _say(f"mtrun: warning: {sentence}")
    sides: dict[str, Any] = {}
    if protocol == "abab":
        named, sides = _sides(str(a), str(b), depth, margin)
    else:
        named = named_cells(cells, described, depth)
    return Plan(
        kind=protocol,
        cells=cells_of(jobs, named, multirun),
        seeds=seed_list or tuple(range(seeds)),
        prompts=read_prompts(prompts or SHIPPED),
        rounds=rounds or ROUNDS.get(protocol, 1),
        contexts=tuple(sorted(contexts or ())),
        **sides,
        **given,
    )


def _sides(a: str, b: str, depth: int, margin: float | None) -> tuple[list[Any], dict[str, Any]]:
    """The two cells of abab, and what the plan says of them. Two equal ones are told apart by a letter."""
    from dataclasses import replace

    from mtrun.runtime.bench.cells import side_cell

    first, second = side_cell(a, depth, "a"), side_cell(b, depth, "b")
    if first.name == second.name:
        first, second = replace(first, name=f"{first.name}.a"), replace(second, name=f"{second.name}.b")
    told = {"a": first.name, "b": second.name, "margin": DEFAULT_MARGIN if margin is None else margin}
    return [first, second], told


def _check(
    protocol: str,
    multirun: bool,
    cells: str | None,
    described: tuple[str, ...],
    a: str | None,
    b: str | None,
    margin: float | None,
    contexts: tuple[int, ...] | None,
) -> None:
    """Options that do not belong together. Raises ConfigurationError."""
    if protocol == "abab" and (a is None or b is None):
        raise ConfigurationError("abab compares two: give --a and --b, such as --a exact --b tokenv3-0.95")
    if protocol == "abab" and (multirun or cells or described):
        raise ConfigurationError("abab compares --a with --b alone: drop -m, --cells and --cell")
    if protocol != "abab" and (a is not None or b is not None or margin is not None):
        raise ConfigurationError("--a, --b and --margin belong to abab: add --protocol abab")
    if (protocol == "ladder") != (contexts is not None):
        raise ConfigurationError(
            "a ladder needs its contexts, and nothing else has them: --protocol ladder --contexts 1k,2k"
        )
    if contexts and min(contexts) < 1:
        raise ConfigurationError("--contexts takes numbers of at least 1")


def _say(line: str) -> None:
    """Progress is for people and never part of a result."""
    click.echo(line, err=True)
