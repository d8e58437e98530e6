"""A part that is timed alone, and where the parts are listed. Nothing here imports numpy, MLX or pytest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any

# What is timed -> what one call of it is. Each has a module here, which lists its cases.
PARTS: Mapping[str, str] = MappingProxyType(
    {
        "laws": "one judgement of three drafts by every law and rule",
        "rows": "four rows of logits, filtered",
        "kernels": "one matrix product, one forward of the embedded pack's trunk",
        "compose": "words to a checked and traced configuration",
    }
)


class UnavailableError(Exception):
    """This machine or this build has not what a case measures; the text says what is absent."""


@dataclass(frozen=True)
class Timed:
    """What is called over and over. `check` raises AssertionError where the last answer is wrong."""

    call: Callable[[], Any]
    check: Callable[[Any], None]
    about: Mapping[str, str] = field(default_factory=dict)  # such as the instruction set


@dataclass(frozen=True)
class Case:
    """One line of the table. Cases of a `group` do the same work, each its own way; `name` is unique in its group.

    setup: makes the inputs, from fixed seeds; raises UnavailableError.
    """

    group: str
    name: str
    setup: Callable[[], Timed]


def cases_of(part: str) -> tuple[Case, ...]:
    """The cases of a name in PARTS, in the order of the table."""
    return import_module(f"mtrun.runtime.bench.micro.{part}").cases()


def native() -> str:
    """The instruction set that native lanes choose here. Raises UnavailableError where the library was not built."""
    from mtrun.kernels.native import library

    found = library.native_isa() if library.library_path() is not None else None
    if found is None:
        raise UnavailableError("the native library is not built here")
    return found


def hold(right: bool, what: str) -> None:
    """Raises AssertionError with `what` unless it is right."""
    if not right:
        raise AssertionError(what)
