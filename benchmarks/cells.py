"""What is measured: cells (one configuration each), the sides of the process-wide BLAS lane, the plan of windows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

# Native forwards make no product that a BLAS could serve, so both sides forward through MLX.
SIDES: dict[str, tuple[str, ...]] = {
    side: (f"lanes.cpu_blas={wanted}", "lanes.cpu_layer=false")
    for side, wanted in (("armed", "true"), ("declined", "false"))
}
WARM_UP = -1  # the round number of windows that only warm a process up


@dataclass(frozen=True)
class Cell:
    """One configuration under test: what is typed after `mtrun`, and how reports call it."""

    name: str
    label: str
    overrides: tuple[str, ...]


CELLS = (
    Cell("plain", "plain decoding", ("profile=turbo", "draft.depth=0")),
    Cell("exact", "exact, depth 3, block verification", ("profile=turbo", "draft.depth=3")),
    Cell("exact-rows", "exact, depth 3, row by row", ("profile=turbo", "draft.depth=3", "lanes.block_verify=false")),
    Cell("tokenv3-0.95", "cascade tokenv3, alpha 0.95, depth 3", ("profile=cascade-tokenv3", "cascade.alpha=0.95")),
    Cell("typical-0.2", "typical, threshold 0.2, depth 3", ("profile=typical-0.2", "draft.depth=3")),
)


@dataclass(frozen=True)
class Side:
    """How much is measured with `cpu_blas` armed or declined."""

    name: str
    seeds: tuple[int, ...]
    prompts_per_seed: int


@dataclass(frozen=True)
class Plan:
    """Everything that decides which windows there are. Two receipts of one plan can be joined."""

    cells: tuple[Cell, ...]
    sides: tuple[Side, ...]
    prompts: tuple[str, ...]
    tokens: int  # emitted by each window, whatever the model would have stopped at
    overrides: tuple[str, ...] = ()  # for every cell

    def words(self, side: str, cell: Cell) -> tuple[str, ...]:
        """The overrides of a cell on a side, as they would be typed."""
        return (*cell.overrides, *SIDES[side], *self.overrides)

    def to_json(self) -> dict:
        return json.loads(json.dumps(asdict(self)))

    @staticmethod
    def of_json(found: dict) -> Plan:
        """The inverse of `to_json`."""
        cells = tuple(Cell(one["name"], one["label"], tuple(one["overrides"])) for one in found["cells"])
        sides = tuple(Side(one["name"], tuple(one["seeds"]), one["prompts_per_seed"]) for one in found["sides"])
        return Plan(cells, sides, tuple(found["prompts"]), found["tokens"], tuple(found["overrides"]))


@dataclass(frozen=True)
class Slot:
    """One window to be measured. `round` counts (side, seed, prompt) groups; all cells of a group run side by side."""

    side: str
    cell: str
    seed: int
    prompt: int
    round: int

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.side, self.cell, self.seed, self.prompt

    @property
    def request_seed(self) -> int:
        """The seed of the request: the same for every cell, so that their random draws are paired."""
        return self.seed * 1000 + self.prompt


def schedule(plan: Plan) -> list[Slot]:
    """Every window in the order of measurement: sides take turns, and every second round of a side runs backwards.

    The first cell of a round moves on by one after each pair, so that no cell always follows the same other one.
    """
    queues = [list(_rounds(plan, side)) for side in plan.sides]
    slots: list[Slot] = []
    longest = max((len(queue) for queue in queues), default=0)
    for turn in range(longest):
        for queue in queues:
            # A shorter side is spread over the whole run, not finished in its first minutes.
            due = (turn + 1) * len(queue) // longest - turn * len(queue) // longest
            if due:
                slots += queue[turn * len(queue) // longest]
    return slots


def warm_up(plan: Plan, side: Side) -> list[Slot]:
    """One window of each cell that is published but never counted."""
    return [Slot(side.name, cell.name, side.seeds[0], 0, WARM_UP) for cell in plan.cells]


def _rounds(plan: Plan, side: Side) -> Iterator[list[Slot]]:
    number = 0
    for position, seed in enumerate(side.seeds):
        for prompt in prompts_of(plan, side, position):
            yield _ordered([Slot(side.name, cell.name, seed, prompt, number) for cell in plan.cells])
            number += 1


def _ordered(slots: list[Slot]) -> list[Slot]:
    first = slots[0].round // 2 % len(slots)
    turned = slots[first:] + slots[:first]
    return turned[::-1] if slots[0].round % 2 else turned


def prompts_of(plan: Plan, side: Side, position: int) -> list[int]:
    """Prompt numbers of the seed at `position`, moving on from seed to seed.

    A side that takes fewer takes some of those that the fullest side gives the same seed, so that sides can be paired.
    """
    most = min(max(each.prompts_per_seed for each in plan.sides), len(plan.prompts))
    count = min(side.prompts_per_seed, most)
    chosen = sorted((position * count + step) % most for step in range(count))
    return [(position * most + step) % len(plan.prompts) for step in chosen]
