"""Addition, worked column by column."""

from __future__ import annotations

import random

from mtrun.runtime.forge.tasks import columns
from mtrun.runtime.forge.tasks.contract import Family, Task, check_number

_FORMS = (
    "What is {a} + {b}?",
    "Add {a} and {b}.",
    "Compute {a} + {b}.",
    "Work out {a} plus {b}.",
    "Find the sum of {a} and {b}.",
    "How much is {a} plus {b}?",
    "Calculate the sum {a} + {b}.",
    "Give me {a} + {b}.",
    "Tell me what {a} and {b} make together.",
)
_WRITE = ("write", "put", "note", "set down")
_CARRY = ("carry", "keep", "take along", "remember")


def working(rng: random.Random, first: int, second: int) -> str:
    """The written steps, one column a line."""
    left, right = columns.padded(first, second)
    lines, carry = [f"{left} + {right}"], 0
    for place, (a, b) in enumerate(zip(reversed(left), reversed(right), strict=True)):
        total = int(a) + int(b) + carry
        terms = f"{a}+{b}+1" if carry else f"{a}+{b}"
        carry = total // 10
        note = f", {rng.choice(_CARRY)} 1" if carry else ""
        lines.append(f"{columns.PLACES[place]}: {terms}={total}, {rng.choice(_WRITE)} {total % 10}{note}")
    if carry:
        lines.append(f"{columns.PLACES[len(left)]}: 1")
    return "\n".join(lines)


def generate(rng: random.Random, level: int) -> Task:
    """A sum of two numbers of the level's digits."""
    first, second = columns.operands(rng, level)
    opening, closing = rng.choice(columns.OPENINGS), rng.choice(columns.CLOSINGS)
    answer = f"{opening}\n{working(rng, first, second)}\n{closing.format(n=first + second)}"
    low, high = sorted((first, second))
    prompt = columns.asked(rng, _FORMS, first, second)
    return Task("addition", level, prompt, answer, f"add {low} {high}", first + second)


FAMILY = Family("addition", len(columns.LEVELS), generate, check_number)
