"""Every family, training draws that never touch a held-out task, and the fixed held-out set."""

from __future__ import annotations

import random
from collections.abc import Mapping

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.forge.tasks import addition, copying, functions, lists, subtraction, word_problems
from mtrun.runtime.forge.tasks.contract import Family, Task, Verdict, held_out

FAMILIES: Mapping[str, Family] = {
    one.FAMILY.name: one.FAMILY for one in (addition, subtraction, word_problems, lists, functions, copying)
}
HELD_TASKS = 164
HELD_SEED = 20
_TRIES = 1000  # draws before a search is given up
# Levels of the held-out set by family; the rest of the curriculum is practice for these.
_HELD_LEVELS = {
    "addition": (1, 2, 3, 4),
    "subtraction": (1, 2, 3, 4),
    "word_problems": (1, 2),
    "lists": (0, 1, 2),
    "functions": (0, 1),
}


def draw(rng: random.Random, family: str, level: int) -> Task:
    """A training task: never one whose content is held out."""
    return _draw(rng, family, level, False)


def check(task: Task, text: str) -> Verdict:
    """What the task's own family says of the answer `text`."""
    return FAMILIES[task.family].check(task, text)


def held_set(size: int = HELD_TASKS, seed: int = HELD_SEED) -> list[Task]:
    """`size` tasks over all graded families in turn, no content twice. Equal arguments give equal tasks."""
    names = list(_HELD_LEVELS)
    tasks: list[Task] = []
    seen: set[str] = set()
    rng = random.Random(f"held {seed}")
    for _ in range(_TRIES * size):
        if len(tasks) == size:
            return tasks
        name = names[len(tasks) % len(names)]
        levels = _HELD_LEVELS[name]
        task = _draw(rng, name, levels[len(tasks) // len(names) % len(levels)], True)
        if task.key not in seen:
            seen.add(task.key)
            tasks.append(task)
    raise ConfigurationError(f"the families hold no {size} different tasks of the held-out kind: ask for fewer.")


def _draw(rng: random.Random, family: str, level: int, held: bool) -> Task:
    for _ in range(_TRIES):
        task = FAMILIES[family].generate(rng, level)
        if held_out(task.key) == held:
            return task
    raise ConfigurationError(f"{family} has no task of level {level} on this side of the held-out split.")
