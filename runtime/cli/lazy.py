"""Commands that are imported when they are called."""

from __future__ import annotations

from importlib import import_module

import click


def imported(place: str) -> click.Command | None:
    """The command at "module:object"; None where its own file is absent. What that file lacks is raised."""
    module, _, attribute = place.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None
