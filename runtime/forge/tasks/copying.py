"""Copying: what every other family rests on, learnt first and densely. It is not graded."""

from __future__ import annotations

import random

from mtrun.runtime.forge.tasks.contract import Family, Task, Verdict

_FORMS = ("Repeat: {x}", "Say it again: {x}", "Copy this: {x}", "Write: {x}", "Read out: {x}")
_BACK = ("Backwards: {x}", "Reverse: {x}", "Turn around: {x}")
_WORDS = (
    "Tom", "Anna", "Ben", "Mia", "Paul", "Lisa", "Omar", "Nina", "Leo", "Sara", "apples", "books", "coins", "pens",
    "cards", "eggs", "stones", "cups", "stamps", "balls", "boxes", "bags", "rows", "shelves", "packs", "baskets",
    "solve", "run", "work", "task", "compute", "calc", "make", "answer", "func", "apply", "step", "value", "items",
    "numbers", "text", "word", "other",
)  # fmt: skip


def generate(rng: random.Random, level: int) -> Task:
    """Level 0: a row of words and digits; 1: a number or a list of digits too; 2: half of them backwards."""
    kind = rng.randrange(4) if level else 0
    if kind == 0:
        length = rng.randint(3, 12) if level < 2 else rng.randint(2, 6)
        values = [str(rng.randrange(10)) if rng.random() < 0.5 else rng.choice(_WORDS) for _ in range(length)]
    else:
        values = [str(rng.randrange(10)) for _ in range(rng.randint(2, 7 if level < 2 else 5))]
    back = level == 2 and rng.random() < 0.5

    def shown(row: list[str]) -> str:
        if kind == 3:
            return "[" + ", ".join(row) + "]"
        return "".join(row) if kind == 2 else " ".join(row)

    prompt = rng.choice(_BACK if back else _FORMS).format(x=shown(values))
    result = shown(values[::-1] if back else values)
    return Task("copying", level, prompt, result, f"copy {back} {kind} {' '.join(values)}", result)


def check(task: Task, text: str) -> Verdict:
    """Right when the copy stands in the text."""
    ok = task.expect in text
    return Verdict(ok, f"the answer {'holds' if ok else 'lacks'} {task.expect}.")


FAMILY = Family("copying", 3, generate, check, graded=False)
