"""The contract of a task family: a seeded generator of tasks and a checker that accepts every right answer."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HELD_SHARE = 8  # one content key in so many is held out
_NUMBER = re.compile(r"-?\d+")
_LIST = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True)
class Task:
    """One task. `answer` is one right answer of many; `expect` is what the family's checker compares with."""

    family: str
    level: int  # difficulty, 0 = easiest
    prompt: str
    answer: str
    key: str  # what is asked, whatever the wording: decides whether the task is held out
    expect: Any  # plain JSON types


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is right, and why in one sentence."""

    ok: bool
    reason: str


@dataclass(frozen=True)
class Family:
    """A family. `generate(rng, level)` draws from `rng` alone, so equal seeds give equal tasks."""

    name: str
    levels: int
    generate: Callable[[random.Random, int], Task]
    check: Callable[[Task, str], Verdict]
    graded: bool = True  # False: for the curriculum only, never in the held-out set


def held_out(key: str) -> bool:
    """Whether tasks with this content are held out. A pure function of the content, so no wording leaks one."""
    return int(hashlib.sha256(key.encode()).hexdigest()[:8], 16) % HELD_SHARE == 0


def check_number(task: Task, text: str) -> Verdict:
    """Right when the last integer of `text` is `task.expect`."""
    found = _NUMBER.findall(text)
    if not found:
        return Verdict(False, "the answer holds no number.")
    if len(found[-1]) > 32 or int(found[-1]) != task.expect:
        return Verdict(False, f"the answer ends with {found[-1][:32]}, not {task.expect}.")
    return Verdict(True, f"the answer is {task.expect}.")


def check_list(task: Task, text: str) -> Verdict:
    """Right when the last bracketed list of integers in `text` is `task.expect`."""
    found = _LIST.findall(text)
    if not found:
        return Verdict(False, "the answer holds no list in brackets.")
    words = [word.strip() for word in found[-1].split(",")] if found[-1].strip() else []
    if not all(_NUMBER.fullmatch(word) and len(word) <= 32 for word in words):
        return Verdict(False, "the answer's last list holds something that is no integer.")
    if [int(word) for word in words] != task.expect:
        return Verdict(False, f"the answer's last list is [{', '.join(words)[:80]}], not {task.expect}.")
    return Verdict(True, f"the list is {task.expect}.")
