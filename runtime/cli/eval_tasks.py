"""`mtrun eval tasks`: a task set decoded under the configured law, answer by answer, and scored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mtrun.runtime.cli.hydra_flags import configured_command
from mtrun.runtime.config.compose import Composed
from mtrun.runtime.errors import ConfigurationError

if TYPE_CHECKING:
    from mtrun.runtime.evaluate.contract import TaskSet
    from mtrun.runtime.evaluate.folder import Plan, RunFolder
    from mtrun.runtime.preparation import Preparation


@configured_command("tasks")
@click.option("--set", "set_name", required=True, metavar="SET", help="nano, facts, humaneval, humaneval-raw or FILE.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder; with -m one sub-folder each.")
@click.option("--seeds", type=click.IntRange(1), metavar="N", help="Seeds 0 to N - 1.  [default: 1]")
@click.option("--seed-list", metavar="A,B,...", help="These seeds.")
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Of an answer.  [default: the set's]")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The first N tasks of the set.")
@click.option("--cell", "called", metavar="NAME", help="What the run is called in reports; default its law's name.")
@click.option("--resume", is_flag=True, help="Decode what the folder's run lacks.")
def tasks(
    composed: Composed,
    set_name: str,
    out: Path,
    seeds: int | None,
    seed_list: str | None,
    max_tokens: int | None,
    limit: int | None,
    called: str | None,
    resume: bool,
) -> int:
    """Decode every (task, seed) of a set under the configured law, keep each answer, and print the scores."""
    from mtrun.runtime.cli.eval_runs import name_of, place
    from mtrun.runtime.evaluate.folder import Plan, RunFolder, decisive
    from mtrun.runtime.evaluate.run import write_summary
    from mtrun.runtime.evaluate.sets.catalogue import open_set
    from mtrun.runtime.evaluate.table import table
    from mtrun.runtime.preparation import prepare

    asked = open_set(set_name)
    plan = Plan.of(asked, _seeds(seeds, seed_list), max_tokens, limit)
    cell = name_of(composed, called)
    folder = RunFolder.start(place(out, cell), plan, resume)
    run = prepare(composed)
    folder.check(decisive(run))
    if folder.missing(asked) and not _decode(run, asked, folder, cell, _command(composed, plan, folder.path, called)):
        total = plan.tasks * len(plan.seeds)
        click.echo(f"kept {len(folder.answers)} of {total} answers: the same command with --resume goes on", err=True)
        raise click.Abort  # the combinations that would follow do not run
    click.echo(table(write_summary(folder, asked.sha256)))
    return 0


def _command(composed: Composed, plan: Plan, out: Path, called: str | None) -> list[str]:
    """The words that make this run alone, secrets hidden."""
    folder = click.get_current_context().params["config_dir"]
    more = {"--set": plan.set, "--out": out, "--seed-list": ",".join(map(str, plan.seeds)), "--limit": plan.tasks}
    more |= {"--max-tokens": plan.max_tokens, **({"--config-dir": folder} if folder else {})}
    more |= {"--cell": called} if called else {}
    options = [str(word) for option in more.items() for word in option]
    return ["mtrun", "eval", "tasks", *composed.overrides, *options]


def _decode(run: Preparation, asked: TaskSet, folder: RunFolder, cell: str, command: list[str]) -> bool:
    """Whether every answer is there now."""
    from mtrun.runtime.cli.eval_runs import generator_of
    from mtrun.runtime.cli.interrupts import interrupts
    from mtrun.runtime.evaluate.answering import prompt_ids
    from mtrun.runtime.evaluate.run import decode, write_summary
    from mtrun.runtime.forge.bar import progress

    prompts = prompt_ids(run, asked.tasks[: folder.plan.tasks])
    generator = generator_of(run)
    with interrupts() as stop, progress(f"{asked.name} {cell}") as advance:
        finished = decode(generator, asked, prompts, folder, cell, command, advance, stop)
    if not finished:
        write_summary(folder, asked.sha256)
    return finished


def _seeds(count: int | None, listed: str | None) -> tuple[int, ...]:
    if listed is None:
        return tuple(range(count or 1))
    if count is not None:
        raise ConfigurationError("--seeds and --seed-list say the same: give one of them")
    try:
        found = tuple(int(word) for word in listed.split(","))
    except ValueError as error:
        raise ConfigurationError(f"--seed-list {listed} is no list of numbers: write such as 0,1,2") from error
    if min(found) < 0:
        raise ConfigurationError("--seed-list takes numbers from 0 on")
    return found
