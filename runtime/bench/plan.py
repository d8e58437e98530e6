"""What a run measures: its cells, and every window in the order of measurement.

A window is (cell, seed, prompt, round, context). The windows of all cells at one (seed, prompt, round, context) are
measured side by side, and the order within such a group turns from group to group, so that drift falls on all alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, Protocol

PROMPT_LIMIT = 1000  # prompts of one run, so that request seeds are all different
KINDS = ("sweep", "ladder", "abab", "micro")


@dataclass(frozen=True)
class Cell:
    """One configuration: the words that would be typed after `mtrun`."""

    name: str
    label: str
    overrides: tuple[str, ...]


class Planned(Protocol):
    """What a folder has to know of a plan, whatever is measured."""

    @property
    def kind(self) -> str: ...

    @property
    def cells(self) -> tuple[Cell, ...]: ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Plan:
    """Everything that decides which windows there are. Only runs of one plan can be joined."""

    kind: str  # sweep, ladder, abab; micro has a plan of its own
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    prompts: tuple[str, ...]
    per_seed: int  # prompts of each seed, in turn
    rounds: int  # how often a (seed, prompt) is repeated; averaged within the seed
    tokens: int  # of every window, whatever the model would have stopped at
    contexts: tuple[int, ...] = ()  # prompt tokens to build up to, ascending; () = prompts as they are
    memory_cap: int | None = None  # bytes; a window that is estimated above it becomes a row that says so
    a: str | None = None  # of abab: the cell compared with
    b: str | None = None
    margin: float | None = None  # of abab: the ratio 1 + margin up to which two speeds are called equal
    nll: bool = True
    split: bool = True
    shadow: str | None = None

    def to_json(self) -> dict:
        return json.loads(json.dumps(asdict(self)))

    @staticmethod
    def of_json(found: dict) -> Plan:
        """The inverse of `to_json`."""
        cells = tuple(Cell(one["name"], one["label"], tuple(one["overrides"])) for one in found["cells"])
        lists = {name: tuple(found[name]) for name in ("seeds", "prompts", "contexts")}
        return Plan(**{**found, "cells": cells, **lists})


@dataclass(frozen=True)
class Slot:
    """One window to be measured. A negative round is a warm-up's: it belongs to a session and is never counted."""

    cell: str
    seed: int
    prompt: int
    round: int
    context: int | None = None  # prompt tokens asked for; None = the prompt as it is

    @property
    def request_seed(self) -> int:
        """Equal for every cell, round and context, so that all of them draw the same uniforms."""
        return self.seed * PROMPT_LIMIT + self.prompt

    @property
    def file(self) -> str:
        """Name of the window's file."""
        context = "" if self.context is None else f".c{self.context}"
        return f"{self.cell}.s{self.seed}.p{self.prompt}.r{self.round}{context}.json"


def schedule(plan: Plan) -> list[Slot]:
    """Every window in the order of measurement."""
    alternate = plan.kind == "abab"
    groups = ([replace(at, cell=cell.name) for cell in plan.cells] for at in _places(plan))
    return list(chain.from_iterable(_turned(group, number, alternate) for number, group in enumerate(groups)))


def warm_up(plan: Plan, session: int) -> list[Slot]:
    """One window of each cell that is kept and never counted, named after the session that it warms up."""
    context = plan.contexts[0] if plan.contexts else None
    first = prompts_of(plan, 0)[0]
    return [Slot(cell.name, plan.seeds[0], first, -1 - session, context) for cell in plan.cells]


def prompts_of(plan: Plan, position: int) -> list[int]:
    """Prompt numbers of the seed at `position`, moving on from seed to seed."""
    count = min(plan.per_seed, len(plan.prompts))
    return [(position * count + step) % len(plan.prompts) for step in range(count)]


def _places(plan: Plan) -> Iterator[Slot]:
    for position, seed in enumerate(plan.seeds):
        for context in plan.contexts or (None,):
            for prompt in prompts_of(plan, position):
                for number in range(plan.rounds):
                    yield Slot("", seed, prompt, number, context)


def _turned(slots: list[Slot], number: int, alternate: bool) -> list[Slot]:
    """Two compared cells take turns to start; of several, each leads in turn and every second group runs backwards."""
    if alternate:
        return slots[::-1] if number % 2 else slots
    first = number // 2 % len(slots)
    turned = slots[first:] + slots[:first]
    return turned[::-1] if number % 2 else turned
