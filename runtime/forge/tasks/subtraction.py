"""Subtraction, worked column by column; the result is never negative."""

from __future__ import annotations

import random

from mtrun.runtime.forge.tasks import columns
from mtrun.runtime.forge.tasks.contract import Family, Task, check_number

_FORMS = (
    "What is {a} - {b}?",
    "Subtract {b} from {a}.",
    "Compute {a} - {b}.",
    "Work out {a} minus {b}.",
    "Find the difference of {a} and {b}.",
    "How much is {a} minus {b}?",
    "Calculate {a} - {b}.",
    "Take {b} away from {a}.",
    "Give me {a} - {b}.",
)
_WRITE = ("write", "put", "note", "set down")
_BORROW = ("borrow", "lend", "owe", "take")


def working(rng: random.Random, first: int, second: int) -> str:
    """The written steps, one column a line; a column that borrows is worked with ten more."""
    left, right = columns.padded(first, second)
    lines, borrowed = [f"{left} - {right}"], 0
    for place, (a, b) in enumerate(zip(reversed(left), reversed(right), strict=True)):
        short = int(a) - borrowed < int(b)
        top = int(a) + 10 * short
        terms = f"{top}-{b}-1" if borrowed else f"{top}-{b}"
        rest = top - borrowed - int(b)
        note = f", {rng.choice(_BORROW)} 1" if short else ""
        lines.append(f"{columns.PLACES[place]}: {terms}={rest}, {rng.choice(_WRITE)} {rest}{note}")
        borrowed = int(short)
    return "\n".join(lines)


def generate(rng: random.Random, level: int) -> Task:
    """A difference of two numbers of the level's digits, the larger first."""
    second, first = sorted(columns.operands(rng, level))
    opening, closing = rng.choice(columns.OPENINGS), rng.choice(columns.CLOSINGS)
    answer = f"{opening}\n{working(rng, first, second)}\n{closing.format(n=first - second)}"
    prompt = columns.asked(rng, _FORMS, first, second)
    return Task("subtraction", level, prompt, answer, f"subtract {first} {second}", first - second)


FAMILY = Family("subtraction", len(columns.LEVELS), generate, check_number)
