"""Which peers are measured, in which windows, and in what order."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

MEASURES = ("prefill", "decode", "rows")
MODULES = {
    "ours": "benchmarks.peers.ours",
    "mlx-lm": "benchmarks.peers.mlx_lm",
    "llama.cpp": "benchmarks.peers.llama_cpp",
    "transformers": "benchmarks.peers.transformers",
}


@dataclass(frozen=True)
class Entry:
    """One line of the table: a runtime with one set of weights or one configuration."""

    name: str  # also part of a file name
    module: str  # of the peer, see `base`
    settings: dict[str, Any] = field(default_factory=dict)  # what its `open` reads besides threads and context
    foreign: bool = False  # runs under --peer-python


@dataclass(frozen=True)
class Plan:
    """Everything that decides which windows there are. Token counts leave nothing to end-of-sequence."""

    entries: tuple[Entry, ...]
    rounds: int
    threads: int
    prefill_tokens: int
    prompt_tokens: int
    tokens: int
    widths: tuple[int, ...]
    repeats: int  # forwards of each width in a window
    measures: tuple[str, ...] = MEASURES

    @property
    def context(self) -> int:
        """Tokens of the longest text that a window holds."""
        return max(self.prefill_tokens, self.prompt_tokens + max(self.tokens, *self.widths)) + 1

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))

    @staticmethod
    def of_json(found: dict[str, Any]) -> Plan:
        """The inverse of `to_json`."""
        lists = ("entries", "widths", "measures")
        entries = tuple(Entry(**one) for one in found["entries"])
        plain = {name: value for name, value in found.items() if name not in lists}
        return Plan(entries=entries, widths=tuple(found["widths"]), measures=tuple(found["measures"]), **plain)


@dataclass(frozen=True)
class Slot:
    """One window to be measured."""

    round: int
    measure: str
    entry: str

    @property
    def file(self) -> str:
        """Name of the window's receipt."""
        return f"{self.round:03}-{self.measure}-{self.entry}.json"


def schedule(plan: Plan) -> list[Slot]:
    """Every window in the order of measurement: within a round, each measure is taken of all peers one after another.

    Every second round runs backwards and the starter moves on after each pair, so that slow drift of the machine falls
    on all alike and no peer always follows the same other one.
    """
    names = [entry.name for entry in plan.entries]
    slots: list[Slot] = []
    for number in range(plan.rounds):
        first = number // 2 % len(names)
        turned = names[first:] + names[:first]
        ordered = turned[::-1] if number % 2 else turned
        slots += [Slot(number, measure, name) for measure in plan.measures for name in ordered]
    return slots
