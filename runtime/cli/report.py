"""`mtrun report`: tables, charts and a page from the receipts of runs; and whether any of it has drifted."""

from __future__ import annotations

from pathlib import Path

import click

from mtrun.runtime.errors import ConfigurationError


@click.command()
@click.argument("paths", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", metavar="FOLDER", type=click.Path(path_type=Path), help="Where the report goes.")
@click.option("--title", default=None, help="Of the report.")
@click.option("--check", "action", flag_value="check", help="Make the reports in these folders again and compare.")
@click.option(
    "--check-text", "action", flag_value="check-text", help="Compare the figures in these texts with the data."
)
@click.option("--write-text", "action", flag_value="write-text", help="Put the data's figures into these texts.")
def report(paths: tuple[Path, ...], out: Path | None, title: str | None, action: str | None) -> int:
    """Write a report of RUN... (folders of mtrun bench and mtrun eval) into --out: report.md, index.html, figures,
    figures.json and a manifest. With --check, FOLDER...: exit 1 and name what drifted. With --check-text, FILE.md...:
    figures between <!-- figure FILE.json#/POINTER FORMAT --> and <!-- /figure --> are held to the data."""
    if action is not None and (out or title):
        raise ConfigurationError(f"--{action} writes no report: leave --out and --title away.")
    if action == "check":
        return _check(paths)
    if action == "check-text":
        return _check_text(paths)
    if action == "write-text":
        return _write_text(paths)
    if out is None:
        raise ConfigurationError("a report needs a folder: add --out FOLDER.")
    return _make(paths, out, title)


def _make(runs: tuple[Path, ...], out: Path, title: str | None) -> int:
    from mtrun.runtime.report.manifest import MANIFEST, TITLE, make

    manifest = make(runs, out, title or TITLE)
    size = sum(stated["bytes"] for stated in manifest["files"].values())
    click.echo(f"{out}: {len(manifest['files'])} files and {MANIFEST}, {size / 1e6:.1f} MB; open {out / 'index.html'}")
    return 0


def _check(folders: tuple[Path, ...]) -> int:
    from mtrun.runtime.report.manifest import check, drawn_elsewhere

    wrong = 0
    for folder in folders:
        drifted = check(folder)
        for line in drifted:
            click.echo(f"{folder}: {line}", err=True)
        if note := drawn_elsewhere(folder):
            click.echo(f"{folder}: {note}", err=True)
        if not drifted:
            click.echo(f"{folder}: every file is what its receipts say")
        wrong += len(drifted)
    return 1 if wrong else 0


def _check_text(texts: tuple[Path, ...]) -> int:
    from mtrun.runtime.report.figures_in_text import check_text

    count, wrong = check_text(texts)
    for line in wrong:
        click.echo(line, err=True)
    click.echo(f"{count} figures in {len(texts)} texts, {len(wrong)} wrong")
    return 1 if wrong else 0


def _write_text(texts: tuple[Path, ...]) -> int:
    from mtrun.runtime.report.figures_in_text import write_text

    for line in write_text(texts):
        click.echo(line)
    return 0
