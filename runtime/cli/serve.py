"""`mtrun serve`: settle, load, prove, print the verdicts, and only then open the port."""

from __future__ import annotations

import logging
import shutil
import sys

import click

from mtrun.runtime.cli.hydra_flags import configured_command
from mtrun.runtime.config.compose import Composed


@configured_command("serve", multirun=False)
def serve(composed: Composed) -> int:
    """Serve a pack over HTTP to OpenAI clients."""
    from mtrun.runtime.engine import Engine
    from mtrun.runtime.server.serve import serve as run

    log_to_stderr()
    with Engine(composed) as engine:
        click.echo(engine.verdict_table(width=shutil.get_terminal_size((110, 24)).columns))
        law = engine.law()
        click.echo(f"law: {describe_law(law)}")
        run(engine, on_bound=lambda host, port: click.echo(f"mtrun serves {engine.model_id} on {_url(host, port)}"))
    return 0


def describe_law(law: dict) -> str:
    """A law in one line: its name, knobs and whether it keeps the model's own distribution."""
    knobs = [f"rule={law['rule']}"] if law["rule"] else []
    knobs += [f"{name}={value:g}" for name, value in law["parameters"].items()]
    exact = "distribution-exact" if law["distribution_exact"] else "NOT distribution-exact"
    return " ".join([law["law"], *knobs, f"({exact})"])


def log_to_stderr() -> None:
    """One line a request, on standard error; content is never logged."""
    logger = logging.getLogger("mtrun")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
