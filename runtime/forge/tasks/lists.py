"""Operations on a short list of small integers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mtrun.runtime.forge.tasks.contract import Family, Task, Verdict, check_list, check_number

Worked = tuple[str, Any]  # what is written before the result, the result


@dataclass(frozen=True)
class _Operation:
    forms: tuple[str, ...]  # hold {x}, some {k}
    closings: tuple[str, ...]  # hold {r}
    work: Callable[[random.Random, list[int], int], Worked]
    distinct: bool = False


def _walk(rng: random.Random, values: list[int], keep: Callable[[int], bool]) -> str:
    """Each value in turn with yes or no."""
    yes, no = rng.choice((("yes", "no"), ("in", "out"), ("keep", "skip"), ("take", "leave")))
    return ", ".join(f"{value} {yes if keep(value) else no}" for value in values) + ". "


def _filter(keep: Callable[[int, int], bool]) -> Callable[[random.Random, list[int], int], Worked]:
    def work(rng: random.Random, values: list[int], k: int) -> Worked:
        return _walk(rng, values, lambda v: keep(v, k)), [v for v in values if keep(v, k)]

    return work


def _count(rng: random.Random, values: list[int], k: int) -> Worked:
    seen, parts = 0, []
    for value in values:
        seen += value == k
        parts.append(f"{value}: {seen}")
    return ", ".join(parts) + ". ", seen


def _sum(rng: random.Random, values: list[int], k: int) -> Worked:
    total, parts = values[0], []
    for value in values[1:]:
        parts.append(f"{total}+{value}={total + value}")
        total += value
    return ", ".join(parts) + ". ", total


def _best(better: Callable[[int, int], int]) -> Callable[[random.Random, list[int], int], Worked]:
    def work(rng: random.Random, values: list[int], k: int) -> Worked:
        best, seen = values[0], []
        for value in values:
            best = better(best, value)
            seen.append(best)
        return f"{rng.choice(('So far', 'Step by step', 'Going along'))}: {', '.join(map(str, seen))}. ", best

    return work


_LISTED = ("The list is {r}.", "We get {r}.", "Result: {r}.", "That gives {r}.", "Here it is: {r}.", "So: {r}.")
_NUMBERED = ("The answer is {r}.", "It is {r}.", "Result: {r}.", "That gives {r}.", "So: {r}.", "We get {r}.")

_OPERATIONS = {
    "sort": _Operation(
        ("Sort {x}.", "Sort {x} in ascending order.", "Put {x} in order, smallest first.",
         "Order {x} from low to high."),
        (*_LISTED, "Sorted: {r}."), lambda rng, values, k: ("", sorted(values)), distinct=True,
    ),
    "sort_down": _Operation(
        ("Sort {x} in descending order.", "Put {x} in order, largest first.", "Order {x} from high to low."),
        _LISTED, lambda rng, values, k: ("", sorted(values, reverse=True)), distinct=True,
    ),
    "reverse": _Operation(
        ("Reverse {x}.", "Write {x} backwards.", "Turn {x} around.", "Give {x} in reverse order."),
        (*_LISTED, "Reversed: {r}."), lambda rng, values, k: ("", values[::-1]),
    ),
    "largest": _Operation(
        ("What is the largest number in {x}?", "Find the maximum of {x}.", "Which number in {x} is biggest?"),
        (*_NUMBERED, "The largest is {r}."), _best(max),
    ),
    "smallest": _Operation(
        ("What is the smallest number in {x}?", "Find the minimum of {x}.", "Which number in {x} is least?"),
        (*_NUMBERED, "The smallest is {r}."), _best(min),
    ),
    "sum": _Operation(
        ("Add up {x}.", "What is the sum of {x}?", "Find the total of {x}.", "Sum the numbers {x}."),
        (*_NUMBERED, "The sum is {r}.", "The total is {r}."), _sum,
    ),
    "count": _Operation(
        ("How often is {k} in {x}?", "Count the {k} in {x}.", "How many times does {k} appear in {x}?"),
        (*_NUMBERED, "The count is {r}."), _count,
    ),
    "above": _Operation(
        ("Keep the numbers of {x} that are greater than {k}.", "Which numbers in {x} are above {k}?"),
        _LISTED, _filter(lambda v, k: v > k),
    ),
    "below": _Operation(
        ("Keep the numbers of {x} that are less than {k}.", "Which numbers in {x} are below {k}?"),
        _LISTED, _filter(lambda v, k: v < k),
    ),
    "even": _Operation(
        ("Keep the even numbers of {x}.", "Which numbers in {x} are even?", "Filter {x}: even only."),
        _LISTED, _filter(lambda v, k: v % 2 == 0),
    ),
    "odd": _Operation(
        ("Keep the odd numbers of {x}.", "Which numbers in {x} are odd?", "Filter {x}: odd only."),
        _LISTED, _filter(lambda v, k: v % 2 == 1),
    ),
    "first": _Operation(
        ("What is the first number of {x}?", "Which number does {x} begin with?"),
        (*_NUMBERED, "The first is {r}."), lambda rng, values, k: ("", values[0]),
    ),
    "last": _Operation(
        ("What is the last number of {x}?", "Which number does {x} end with?"),
        (*_NUMBERED, "The last is {r}."), lambda rng, values, k: ("", values[-1]),
    ),
}  # fmt: skip


def _values(rng: random.Random, level: int, distinct: bool) -> list[int]:
    length = rng.randint(2, 3) if level == 0 else rng.randint(3, 3 + level)
    if distinct:
        return rng.sample(range(10), length)
    return [rng.randrange(10) for _ in range(length)]


def generate(rng: random.Random, level: int) -> Task:
    """One operation on a list of 2 to 5 digits; the level sets the length."""
    name = rng.choice(list(_OPERATIONS))
    operation = _OPERATIONS[name]
    values = _values(rng, level, operation.distinct)
    k = rng.choice(values) if name == "count" and rng.random() < 0.8 else rng.randrange(1, 9)
    work, result = operation.work(rng, values, k)
    asks_k = "{k}" in operation.forms[0]
    prompt = rng.choice(operation.forms).format(x=values, k=k)
    answer = work + rng.choice(operation.closings).format(r=result)
    key = f"list {name} {values} {k if asks_k else ''}"
    return Task("lists", level, prompt, answer, key, result)


def check(task: Task, text: str) -> Verdict:
    """Right when the last list, or the last number where a number is asked, is the expected one."""
    if isinstance(task.expect, list):
        return check_list(task, text)
    if text.rstrip(" .\n").endswith("]"):
        return Verdict(False, "the answer ends with a list where a number is asked.")
    return check_number(task, text)


FAMILY = Family("lists", 3, generate, check)
