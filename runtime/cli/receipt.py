"""`mtrun receipt show|diff|verify|replay`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

_FILE = click.Path(path_type=Path, exists=True)  # a folder is answered with the name of a window in it


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def receipt() -> None:
    """Receipts of mtrun bench and mtrun eval: show, compare, verify or replay them."""


@receipt.command()
@click.argument("window", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the window and its setting as one JSON object.")
def show(window: Path, as_json: bool) -> None:
    """Tell what a WINDOW was asked, what was on, who decided, and what came of it."""
    from mtrun.runtime.receipts.opened import open_window
    from mtrun.runtime.receipts.show import account, joined

    opened = open_window(window)
    click.echo(json.dumps(joined(opened), indent=2) if as_json else account(opened))


@receipt.command()
@click.argument("a", type=_FILE)
@click.argument("b", type=_FILE)
def diff(a: Path, b: Path) -> int:
    """Compare two windows, A and B: settings, output, figures. Exit 1 where their settings differ."""
    from mtrun.runtime.receipts.diff import setting_differences, told
    from mtrun.runtime.receipts.opened import open_window

    left, right = open_window(a), open_window(b)
    click.echo(told(left, right))
    return 1 if setting_differences(left.setting, right.setting) else 0


@receipt.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True))
def verify(path: Path) -> int:
    """Hold a window or a whole run, PATH, against itself: one line a problem, exit 1 where there is one."""
    from mtrun.runtime.receipts.verify import verify as verified

    done = verified(path)
    for line in done.lines:
        click.echo(line)
    sound = "sound" if not done.lines else f"{len(done.lines)} problem{'s' * (len(done.lines) != 1)}"
    click.echo(f"{path}: {done.summary}: {sound}", err=bool(done.lines))
    return 1 if done.lines else 0


@receipt.command()
@click.argument("window", type=_FILE)
@click.option("--out", type=click.Path(path_type=Path), help="A new folder to keep the replayed window in.")
@click.option("--config-dir", "-cd", type=click.Path(path_type=Path), help="A folder with profiles of your own.")
def replay(window: Path, out: Path | None, config_dir: Path | None) -> int:
    """Measure a WINDOW again, in exactly its configuration. Exit 1 where another output comes out."""
    from mtrun.runtime.receipts.diff import figure_lines, output_lines
    from mtrun.runtime.receipts.opened import open_window
    from mtrun.runtime.receipts.replay import replay as replayed
    from mtrun.runtime.receipts.replay import store

    opened = open_window(window)
    found = replayed(opened, config_dir, lambda text: click.echo(text, err=True))
    for line in found.warnings:
        click.echo(line if line.startswith(" ") else f"warning: {line}", err=True)
    lines = output_lines(opened.window, found.window)
    click.echo("\n".join([*lines, *figure_lines(opened.window, found.window, ("recorded", "replayed"))]))
    if out is not None:
        click.echo(store(opened, found, out, ["mtrun", *sys.argv[1:]]), err=True)
    return 0 if found.first_difference is None else 1
