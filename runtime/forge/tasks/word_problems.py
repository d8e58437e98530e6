"""Word problems of one to three steps with small numbers, worked in sentences."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from mtrun.runtime.forge.tasks.contract import Family, Task, check_number

_PEOPLE = (
    ("Tom", "He"), ("Anna", "She"), ("Ben", "He"), ("Mia", "She"), ("Paul", "He"), ("Lisa", "She"),
    ("Omar", "He"), ("Nina", "She"), ("Leo", "He"), ("Sara", "She"),
)  # fmt: skip
_THINGS = ("apples", "books", "coins", "pens", "cards", "eggs", "stones", "cups", "stamps", "balls")
_BOXES = ("boxes", "bags", "rows", "shelves", "packs", "baskets")
_MORE = ("buys {k} more", "finds {k} more", "gets {k} more", "is given {k} more", "picks up {k}", "adds {k}")
_LESS = ("gives away {k}", "loses {k}", "sells {k}", "breaks {k}", "drops {k}", "hands out {k}")
_HAS = ("{who} has {n} {what}.", "{who} owns {n} {what}.", "{who} starts with {n} {what}.", "{who} holds {n} {what}.")
_ASK = (
    "How many {what} does {who} have now?",
    "How many {what} are left with {who}?",
    "What number of {what} does {who} have in the end?",
    "Count the {what} that {who} has now.",
)
_FIRST = ("At first there are {n} {what}.", "{who} begins with {n}.", "We start at {n}.", "The start is {n} {what}.")
_UP = ("{k} more: ", "Then {k} come in: ", "Adding {k}: ", "Plus {k}: ")
_DOWN = ("{k} fewer: ", "Then {k} go out: ", "Taking {k} off: ", "Minus {k}: ")
_END = (
    "The answer is {n}.",
    "So {who} has {n} {what}.",
    "That leaves {n} {what}.",
    "In the end there are {n}.",
    "{who} ends with {n} {what}.",
    "The count is {n}.",
)
_TIMES = (
    "{who} has {a} {box} with {b} {what} each.",
    "There are {a} {box} of {b} {what} each for {who}.",
    "{who} fills {a} {box} with {b} {what} in each.",
)
_TIMES_FIRST = ("{a} times {b} is {n}.", "{a} {box} of {b} make {n}.", "{a} * {b} = {n}.", "First {a} * {b} = {n}.")


@dataclass(frozen=True)
class _Story:
    who: str
    pronoun: str
    what: str
    box: str

    def tell(self, rng: random.Random, forms: tuple[str, ...], **numbers: int) -> str:
        return rng.choice(forms).format(who=self.who, what=self.what, box=self.box, **numbers)


def _story(rng: random.Random) -> _Story:
    who, pronoun = rng.choice(_PEOPLE)
    return _Story(who, pronoun, rng.choice(_THINGS), rng.choice(_BOXES))


def _start(rng: random.Random, story: _Story, level: int) -> tuple[str, str, int, str]:
    """(sentence of the question, sentence of the answer, number of things, key)."""
    if level >= 2 and rng.random() < 0.5:
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        told = story.tell(rng, _TIMES, a=a, b=b)
        return told, story.tell(rng, _TIMES_FIRST, a=a, b=b, n=a * b), a * b, f"{a}*{b}"
    n = rng.randint(2, 9 if level == 0 else 20)
    return story.tell(rng, _HAS, n=n), story.tell(rng, _FIRST, n=n), n, str(n)


def _step(rng: random.Random, story: _Story, n: int) -> tuple[str, str, int, str]:
    """One change: (words of the question, words of the answer, number after it, key)."""
    up = n < 4 or rng.random() < 0.5
    k = rng.randint(1, 9 if up else min(9, n - 1))
    after = n + k if up else n - k
    change = rng.choice(_MORE if up else _LESS).format(k=k)
    worked = f"{rng.choice(_UP if up else _DOWN).format(k=k)}{n} {'+' if up else '-'} {k} = {after}."
    return change, worked, after, f"{'+' if up else '-'}{k}"


def _joined(rng: random.Random, pronoun: str, changes: list[str]) -> str:
    join: Callable[[str], str] = rng.choice((lambda c: f"{pronoun} {c}.", lambda c: f"Then {pronoun.lower()} {c}."))
    if len(changes) == 2 and rng.random() < 0.5:
        return f"{pronoun} {changes[0]} and then {changes[1]}."
    return " ".join(join(change) for change in changes)


def generate(rng: random.Random, level: int) -> Task:
    """Level 0: one step with small numbers; 1: one or two steps; 2: products too."""
    story = _story(rng)
    told, worked, n, key = _start(rng, story, level)
    changes, lines = [], [worked]
    least = 0 if "*" in key else 1
    for _ in range(1 if level == 0 else rng.randint(least, 2)):
        change, line, n, part = _step(rng, story, n)
        changes.append(change)
        lines.append(line)
        key += part
    parts = [told, *([_joined(rng, story.pronoun, changes)] if changes else []), story.tell(rng, _ASK)]
    answer = " ".join([*lines, story.tell(rng, _END, n=n)])
    return Task("word_problems", level, " ".join(parts), answer, f"word {key}", n)


FAMILY = Family("word_problems", 3, generate, check_number)
