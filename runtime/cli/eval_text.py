"""`mtrun eval text`: free text decoded under the configured law, each text priced by the target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mtrun.runtime.cli.hydra_flags import configured_command
from mtrun.runtime.config.compose import Composed

if TYPE_CHECKING:
    from mtrun.runtime.evaluate.text_folder import TextFolder
    from mtrun.runtime.preparation import Preparation


@configured_command("text")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder; with -m one sub-folder each.")
@click.option("--prompts", type=click.Path(path_type=Path), metavar="FILE", help="User prompts, one a line.")
@click.option("--seeds", type=click.IntRange(1), default=8, show_default=True, help="Seeds 0 to N - 1.")
@click.option("--tokens", type=click.IntRange(1), default=64, show_default=True, help="Of every text.")
@click.option(
    "--against", type=click.Path(path_type=Path), metavar="RUN", help="Signed gaps to this run, such as plain."
)
@click.option("--cell", "called", metavar="NAME", help="What the run is called in reports; default its law's name.")
@click.option("--resume", is_flag=True, help="Decode what the folder's run lacks.")
def text(
    composed: Composed,
    out: Path,
    prompts: Path | None,
    seeds: int,
    tokens: int,
    against: Path | None,
    called: str | None,
    resume: bool,
) -> int:
    """Decode prompts to a fixed length under the configured law, and read each text once with the target."""
    from mtrun.runtime.cli.eval_runs import name_of, place
    from mtrun.runtime.evaluate.compare import need_scipy, read_run
    from mtrun.runtime.evaluate.text import summarize
    from mtrun.runtime.evaluate.text_folder import Plan, TextFolder
    from mtrun.runtime.preparation import prepare

    plan = Plan.of(prompts, seeds, tokens)
    cell = name_of(composed, called)
    folder = TextFolder.start(place(out, cell), plan, resume)
    other = None if against is None or against.resolve() == folder.path.resolve() else against
    if other is not None:
        need_scipy()
        read_run(other)  # a mistake in its name is found before anything is decoded
    run = prepare(composed)
    folder.check(run)
    plan.check_fits(run)
    if folder.missing and not _decode(run, folder, cell, _command(composed, plan, prompts, folder.path, called)):
        kept = f"kept {len(folder.lines)} of {len(plan.texts)} texts: the same command with --resume goes on"
        click.echo(kept, err=True)
        raise click.Abort  # the combinations that would follow do not run
    summary = summarize(folder)
    if other is not None:
        summary = summarize(folder, _gaps(other, folder.path))
    click.echo(_table(summary))
    return 0


def _gaps(other: Path, own: Path) -> dict[str, Any]:
    """Gaps to the other run. Raises UnlikeRunsError after printing what differs; the texts and figures are kept."""
    from mtrun.runtime.evaluate.compare import UnlikeRunsError, compare, gaps, read_run

    try:
        return gaps(compare(read_run(other), read_run(own)))
    except UnlikeRunsError as error:
        for line in error.lines:
            click.echo(line, err=True)
        raise


def _command(composed: Composed, plan: Any, prompts: Path | None, out: Path, called: str | None) -> list[str]:
    """The words that make this run alone, secrets hidden."""
    folder = click.get_current_context().params["config_dir"]
    more: dict[str, Any] = {"--out": out, "--seeds": len(plan.seeds), "--tokens": plan.tokens}
    more |= {"--prompts": prompts} if prompts else {}
    more |= {"--config-dir": folder} if folder else {}
    more |= {"--cell": called} if called else {}
    return ["mtrun", "eval", "text", *composed.overrides, *(str(word) for pair in more.items() for word in pair)]


def _decode(run: Preparation, folder: TextFolder, cell: str, command: list[str]) -> bool:
    """Whether every text is there now."""
    from mtrun.runtime.cli.eval_runs import generator_of
    from mtrun.runtime.cli.interrupts import interrupts
    from mtrun.runtime.evaluate.text import decode
    from mtrun.runtime.forge.bar import progress

    generator = generator_of(run)
    with interrupts() as stop, progress(f"text {cell}") as advance:
        return decode(generator, folder, cell, command, advance, stop)


def _table(summary: Mapping[str, Any]) -> str:
    from mtrun.runtime.cli.eval_compare import figure, gap, named

    against = summary["against"]
    head = (
        f"{summary['cell']}: {summary['prompts']} prompts x {len(summary['seeds'])} seeds x {summary['tokens']} tokens"
    )
    rows = [f"{head} under {summary['label']}"]
    for name, found in summary["figures"].items():
        bounds = "" if found is None or found["low"] is None else f"[{found['low']:.4f}, {found['high']:.4f}]"
        row = f"{name:<17} {figure(found and found['value']):>9}  {bounds:<18}"
        if against:
            row += "  {:>8} {}".format(*gap(against["gaps"][name]))
        rows.append(row.rstrip())
    if against:
        rows.append(f"Gaps are to {named(against['run'])}; {against['pairs']} pairs.")
    rows.append(f"Intervals: 95 %, Student t over {len(summary['seeds'])} seeds.")
    return "\n".join([*rows, *(f"{name}: {meaning}" for name, meaning in summary["definitions"].items())])
