"""`mtrun eval score`: the answers of a run judged again, without a model."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--set", "set_name", metavar="SET", help="Judge by this set instead of the run's own.")
@click.option("--allow-different", is_flag=True, help="Also where the set is not the one that was asked.")
def score(run: Path, set_name: str | None, allow_different: bool) -> int:
    """Judge the answers of RUN again and rewrite its summary.json; a changed verdict is put into answers.jsonl too."""
    from mtrun.runtime.evaluate.rescore import rescore
    from mtrun.runtime.evaluate.table import table

    done = rescore(run, set_name, allow_different)
    click.echo(table(done.summary))
    click.echo(f"{done.changed} verdicts changed, {done.unknown} answers to tasks that the set does not hold")
    return 0
