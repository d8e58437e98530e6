"""`mtrun audit`: every lane with its verdict, from this configuration or from a running server."""

from __future__ import annotations

import json
import shutil
from typing import Any

import click

from mtrun.runtime.cli.hydra_flags import configured_command
from mtrun.runtime.config.compose import Composed


@configured_command("audit")
@click.option("--json", "as_json", is_flag=True, help="Print the audit object instead of the table.")
@click.option("--url", metavar="URL", help="Ask a running server instead of loading anything here.")
@click.option("--expect", metavar="FILE", help="Compare with a stored audit; exit 1 on a difference.")
def audit(composed: Composed, as_json: bool, url: str | None, expect: str | None) -> int:
    """Show what is really on. Stops before any socket is opened."""
    from mtrun.runtime import audit as audits

    expected = audits.read(expect) if expect else None
    found, text = _remote(composed, url) if url else _local(composed)
    click.echo(json.dumps(found, indent=2) if as_json else text)
    if expected is None:
        return 0
    differences = audits.diff(expected, found)
    for line in differences:
        click.echo(f"differs: {line}", err=True)
    return 1 if differences else 0


def _local(composed: Composed) -> tuple[dict[str, Any], str]:
    from mtrun.runtime.engine import Engine

    with Engine(composed) as engine:
        return engine.audit(), engine.verdict_table(width=shutil.get_terminal_size((110, 24)).columns)


def _remote(composed: Composed, url: str) -> tuple[dict[str, Any], str]:
    from mtrun.runtime import audit as audits

    found = audits.fetch(url, composed.config.server.api_key)
    lines = [f"{lane['lane']:<22}{lane['state']:<10}{lane['code']:<18}{lane['reason']}" for lane in found["lanes"]]
    return found, "\n".join([*lines, str(found["summary"])])
