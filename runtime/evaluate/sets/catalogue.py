"""Which sets there are: three by name, and any JSONL file of questions with their accepted answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.evaluate.contract import TaskSet

# Name -> "module:function", imported when the set is opened.
SETS: Mapping[str, str] = MappingProxyType(
    {
        "nano": "mtrun.runtime.evaluate.sets.nano:open_nano",
        "facts": "mtrun.runtime.evaluate.sets.facts:open_facts",
        "humaneval": "mtrun.runtime.evaluate.sets.humaneval:open_chat",
        "humaneval-raw": "mtrun.runtime.evaluate.sets.humaneval:open_raw",
    }
)


def open_set(name: str) -> TaskSet:
    """A set by its name or its file. Raises ConfigurationError where there is none or it cannot be read."""
    if name in SETS:
        module, _, function = SETS[name].partition(":")
        opened: Callable[[], TaskSet] = getattr(import_module(module), function)
        return opened()
    if not Path(name).is_file():
        known = ", ".join(SETS)
        raise ConfigurationError(
            f"there is no task set and no file {name}: give --set one of {known}, or a JSONL file of your own."
        )
    from mtrun.runtime.evaluate.sets.file import open_file

    return open_file(name)
