"""Small Python functions asked for in words. An answer is checked by running the task's tests on it in the sandbox."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mtrun.runtime.forge.tasks.contract import Family, Task, Verdict
from mtrun.runtime.forge.tasks.sandbox import Limits, run_tests

_NAMES = (
    "f",
    "g",
    "solve",
    "run",
    "work",
    "task",
    "compute",
    "calc",
    "make",
    "answer",
    "func",
    "apply",
    "do_it",
    "step",
)
_ASKS = (
    "Write a Python function {f} that {what}.",
    "Define a function {f} that {what}.",
    "I need a Python function called {f} that {what}.",
    "Code a function {f} that {what}.",
    "Give me Python code: {f} {what}.",
    "Implement {f}, a function that {what}.",
)
_LEADS = ("", "", "Here it is:\n", "Sure:\n", "This works:\n", "One way:\n")
_INTS = ((3,), (10,), (0,), (-4,), (27,), (8,))
_PAIRS = ((3, 8), (9, 2), (5, 5), (-1, 4), (0, -7))
_LISTS = (([3, 1, 2],), ([5],), ([4, 4, 9, 0],), ([-2, 7, 6, 1, 8],), ([10, 3, 5],))
_TEXTS = (("hello",), ("a",), ("Python code",), ("level",))


@dataclass(frozen=True)
class _Kind:
    level: int
    what: tuple[str, ...]  # what the function does, in words; may hold {k}
    bodies: tuple[str, ...]  # right bodies: one expression, or lines with indentation; {k}, {x} and {y} are filled in
    inputs: tuple[tuple[Any, ...], ...]
    truth: Callable[..., Any]  # (k, *input) -> the right value
    names: tuple[str, ...] = ("x", "n", "a", "value", "num")
    second: tuple[str, ...] = ()
    uses_k: bool = False


_LIST_NAMES = ("xs", "items", "values", "numbers", "a")
_TEXT_NAMES = ("s", "text", "word", "t")
_Y = ("y", "b", "m", "other")


def _loop(start: str, step: str) -> str:
    return f"total = {start}\nfor v in {{x}}:\n    {step}\nreturn total"


_KINDS = {
    "add": _Kind(0, ("adds {k} to a number", "returns its argument plus {k}", "increases a number by {k}"),
                 ("{x} + {k}", "{k} + {x}"), _INTS, lambda k, x: x + k, uses_k=True),
    "subtract": _Kind(0, ("subtracts {k} from a number", "returns its argument minus {k}", "lowers a number by {k}"),
                      ("{x} - {k}",), _INTS, lambda k, x: x - k, uses_k=True),
    "multiply": _Kind(0, ("multiplies a number by {k}", "returns {k} times its argument"),
                      ("{x} * {k}", "{k} * {x}"), _INTS, lambda k, x: x * k, uses_k=True),
    "square": _Kind(0, ("squares a number", "returns the square of its argument"),
                    ("{x} * {x}", "{x} ** 2"), _INTS, lambda k, x: x * x),
    "negate": _Kind(0, ("negates a number", "flips the sign of a number"), ("-{x}", "0 - {x}"), _INTS,
                    lambda k, x: -x),
    "even": _Kind(0, ("tells whether a number is even", "checks if a number is even"),
                  ("{x} % 2 == 0", "not {x} % 2"), _INTS, lambda k, x: x % 2 == 0),
    "odd": _Kind(0, ("tells whether a number is odd", "checks if a number is odd"),
                 ("{x} % 2 == 1", "{x} % 2 != 0"), _INTS, lambda k, x: x % 2 == 1),
    "divisible": _Kind(0, ("tells whether a number is divisible by {k}", "checks if {k} divides a number"),
                       ("{x} % {k} == 0", "not {x} % {k}"), _INTS, lambda k, x: x % k == 0, uses_k=True),
    "remainder": _Kind(0, ("returns the remainder of a number by {k}", "gives a number modulo {k}"),
                       ("{x} % {k}",), _INTS, lambda k, x: x % k, uses_k=True),
    "above": _Kind(0, ("tells whether a number is greater than {k}", "checks if a number is above {k}"),
                   ("{x} > {k}", "{k} < {x}"), _INTS, lambda k, x: x > k, uses_k=True),
    "absolute": _Kind(1, ("returns the absolute value of a number", "drops the sign of a number"),
                      ("abs({x})", "{x} if {x} > 0 else -{x}", "if {x} < 0:\n    return -{x}\nreturn {x}"), _INTS,
                      lambda k, x: abs(x)),
    "sum2": _Kind(0, ("adds two numbers", "returns the sum of two numbers"), ("{x} + {y}", "{y} + {x}"), _PAIRS,
                  lambda k, x, y: x + y, second=_Y),
    "difference": _Kind(1, ("returns the first number minus the second", "subtracts the second number from the first"),
                        ("{x} - {y}",), _PAIRS, lambda k, x, y: x - y, second=_Y),
    "product2": _Kind(0, ("multiplies two numbers", "returns the product of two numbers"), ("{x} * {y}", "{y} * {x}"),
                      _PAIRS, lambda k, x, y: x * y, second=_Y),
    "max2": _Kind(1, ("returns the larger of two numbers", "picks the bigger of two numbers"),
                  ("max({x}, {y})", "{x} if {x} > {y} else {y}", "if {x} > {y}:\n    return {x}\nreturn {y}"), _PAIRS,
                  lambda k, x, y: max(x, y), second=_Y),
    "min2": _Kind(1, ("returns the smaller of two numbers", "picks the lesser of two numbers"),
                  ("min({x}, {y})", "{x} if {x} < {y} else {y}", "if {x} < {y}:\n    return {x}\nreturn {y}"), _PAIRS,
                  lambda k, x, y: min(x, y), second=_Y),
    "total": _Kind(1, ("adds up a list", "returns the sum of a list"),
                   ("sum({x})", _loop("0", "total += v"), _loop("0", "total = total + v")), _LISTS,
                   lambda k, x: sum(x), _LIST_NAMES),
    "product": _Kind(1, ("multiplies all numbers of a list", "returns the product of a list"),
                     (_loop("1", "total *= v"), _loop("1", "total = total * v")), _LISTS,
                     lambda k, x: math.prod(x), _LIST_NAMES),
    "squares": _Kind(1, ("adds up the squares of a list", "returns the sum of squares of a list"),
                     ("sum(v * v for v in {x})", "sum(v ** 2 for v in {x})", _loop("0", "total += v * v")), _LISTS,
                     lambda k, x: sum(v * v for v in x), _LIST_NAMES),
    "length": _Kind(1, ("returns the length of a list", "counts the items of a list"),
                    ("len({x})", _loop("0", "total += 1")), _LISTS, lambda k, x: len(x), _LIST_NAMES),
    "reverse": _Kind(1, ("reverses a list", "returns a list backwards"), ("{x}[::-1]", "list(reversed({x}))"), _LISTS,
                     lambda k, x: x[::-1], _LIST_NAMES),
    "sort": _Kind(1, ("sorts a list", "returns a list in ascending order"), ("sorted({x})",), _LISTS,
                  lambda k, x: sorted(x), _LIST_NAMES),
    "largest": _Kind(1, ("returns the largest item of a list", "finds the maximum of a list"),
                     ("max({x})", "sorted({x})[-1]"), _LISTS, lambda k, x: max(x), _LIST_NAMES),
    "smallest": _Kind(1, ("returns the smallest item of a list", "finds the minimum of a list"),
                      ("min({x})", "sorted({x})[0]"), _LISTS, lambda k, x: min(x), _LIST_NAMES),
    "first": _Kind(1, ("returns the first item of a list", "gives the start of a list"), ("{x}[0]",), _LISTS,
                   lambda k, x: x[0], _LIST_NAMES),
    "last": _Kind(1, ("returns the last item of a list", "gives the end of a list"), ("{x}[-1]", "{x}[len({x}) - 1]"),
                  _LISTS, lambda k, x: x[-1], _LIST_NAMES),
    "count": _Kind(1, ("counts how often {k} is in a list", "counts the {k} in a list"),
                   ("{x}.count({k})", "sum(v == {k} for v in {x})", _loop("0", "if v == {k}:\n        total += 1")),
                   _LISTS, lambda k, x: x.count(k), _LIST_NAMES, uses_k=True),
    "keep_above": _Kind(1, ("keeps the items of a list above {k}", "drops the items of a list that are not above {k}"),
                        ("[v for v in {x} if v > {k}]", "list(filter(lambda v: v > {k}, {x}))"), _LISTS,
                        lambda k, x: [v for v in x if v > k], _LIST_NAMES, uses_k=True),
    "keep_even": _Kind(1, ("keeps the even items of a list", "returns the even numbers of a list"),
                       ("[v for v in {x} if v % 2 == 0]", "list(filter(lambda v: v % 2 == 0, {x}))"), _LISTS,
                       lambda k, x: [v for v in x if v % 2 == 0], _LIST_NAMES),
    "add_each": _Kind(1, ("adds {k} to each item of a list", "increases every item of a list by {k}"),
                      ("[v + {k} for v in {x}]", "list(map(lambda v: v + {k}, {x}))"), _LISTS,
                      lambda k, x: [v + k for v in x], _LIST_NAMES, uses_k=True),
    "times_each": _Kind(1, ("multiplies each item of a list by {k}", "returns {k} times every item of a list"),
                        ("[v * {k} for v in {x}]", "[{k} * v for v in {x}]"), _LISTS,
                        lambda k, x: [v * k for v in x], _LIST_NAMES, uses_k=True),
    "backwards": _Kind(1, ("reverses a string", "returns a string backwards"), ("{x}[::-1]",), _TEXTS,
                       lambda k, x: x[::-1], _TEXT_NAMES),
    "upper": _Kind(1, ("turns a string into upper case", "returns a string in capitals"), ("{x}.upper()",), _TEXTS,
                   lambda k, x: x.upper(), _TEXT_NAMES),
    "repeat": _Kind(1, ("repeats a string {k} times", "returns a string {k} times over"), ("{x} * {k}", "{k} * {x}"),
                    _TEXTS, lambda k, x: x * k, _TEXT_NAMES, uses_k=True),
    "palindrome": _Kind(1, ("tells whether a string is a palindrome", "checks if a string reads the same backwards"),
                        ("{x} == {x}[::-1]", "{x}[::-1] == {x}"), _TEXTS, lambda k, x: x == x[::-1], _TEXT_NAMES),
    "up_to": _Kind(1, ("adds the numbers from 1 to n", "returns 1 plus 2 and so on up to n"),
                   ("sum(range({x} + 1))", "{x} * ({x} + 1) // 2",
                    "total = 0\nfor v in range(1, {x} + 1):\n    total += v\nreturn total"),
                   ((1,), (5,), (10,), (0,)), lambda k, x: x * (x + 1) // 2),
    "factorial": _Kind(1, ("returns the factorial of n", "multiplies the numbers from 1 to n"),
                       ("total = 1\nfor v in range(1, {x} + 1):\n    total *= v\nreturn total",
                        "total = 1\nfor v in range(2, {x} + 1):\n    total *= v\nreturn total"),
                       ((1,), (5,), (3,), (0,)), lambda k, x: math.factorial(x)),
}  # fmt: skip


def generate(rng: random.Random, level: int) -> Task:
    """A function of the level's kinds (level 1 = every kind)."""
    kind_name = rng.choice([name for name, kind in _KINDS.items() if kind.level <= level])
    kind = _KINDS[kind_name]
    name, k = rng.choice(_NAMES), rng.randint(2, 9)
    x = rng.choice(kind.names)
    y = rng.choice([one for one in kind.second if one != x]) if kind.second else ""
    phrase = rng.randrange(len(kind.what))
    prompt = rng.choice(_ASKS).format(f=name, what=kind.what[phrase].format(k=k))
    body = rng.choice(kind.bodies).format(k=k, x=x, y=y)
    lines = body.split("\n") if body.startswith(("if ", "total =")) else [f"return {body}"]
    code = f"def {name}({x}{', ' + y if y else ''}):\n" + "\n".join(f"    {line}" for line in lines)
    tests = [[list(given), kind.truth(k, *given)] for given in kind.inputs]
    key = f"function {kind_name} {k if kind.uses_k else ''} {name} {phrase}"
    return Task("functions", level, prompt, rng.choice(_LEADS) + code, key, {"name": name, "tests": tests})


def code_of(text: str) -> str:
    """The code in an answer: from its first line of code on, without a fence."""
    lines = [line for line in text.replace("\t", "    ").split("\n") if not line.startswith("```")]
    starts = [i for i, line in enumerate(lines) if line.startswith(("def ", "import ", "from "))]
    return "\n".join(lines[starts[0] :]) if starts else ""


def check(task: Task, text: str) -> Verdict:
    """Right when every test of the task passes on the function that `text` defines."""
    code = code_of(text)
    if not code:
        return Verdict(False, "the answer defines no function.")
    ran = run_tests(code, task.expect["name"], task.expect["tests"], Limits())
    return Verdict(ran.ok, ran.reason)


FAMILY = Family("functions", 2, generate, check)
