"""What the commands that decode for `mtrun eval` share: one load of the weights, one folder a combination."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mtrun.runtime.errors import ConfigurationError

if TYPE_CHECKING:
    from mtrun.runtime.config.compose import Composed
    from mtrun.runtime.generator import MtpGenerator
    from mtrun.runtime.preparation import Preparation

_CELLS, _BASE = "mtrun.eval.cells", "mtrun.eval.base"  # kept in click's context from combination to combination


def name_of(composed: Composed, called: str | None) -> str:
    """The run's cell: as called, or after its law. Raises ConfigurationError for a name that no file could have."""
    from mtrun.runtime.evaluate.cells import cell_name

    if called is not None and not re.fullmatch(r"[A-Za-z0-9][\w.-]*", called):
        raise ConfigurationError(f"--cell {called!r} is no name: write letters, digits, points, dashes")
    return called or cell_name(composed)


def generator_of(run: Preparation) -> MtpGenerator:
    """The loaded generator of `run`; combinations of one command share the weights of the first."""
    from mtrun.runtime.generator import MtpGenerator

    context = click.get_current_context()
    base: MtpGenerator | None = context.meta.get(_BASE)
    if base is None:
        generator = context.meta[_BASE] = MtpGenerator(run)
        context.call_on_close(generator.close)
        generator.load()
        return generator
    try:
        generator = base.variant(run)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}; or run this combination by a command of its own") from error
    context.call_on_close(generator.close)  # last in, first out: before the weights that it shares
    return generator


def place(out: Path, cell: str) -> Path:
    """The folder of this combination. Raises ConfigurationError where two combinations would share one."""
    context = click.get_current_context()
    if not context.params["multirun"]:
        return out
    taken: set[str] = context.meta.setdefault(_CELLS, set())
    if cell in taken:
        raise ConfigurationError(f"two combinations are called {cell}: run them by commands of their own.")
    taken.add(cell)
    return out / cell
