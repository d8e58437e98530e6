"""The contract of a task set: named tasks with a checker each, and a digest of all that is asked and expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mtrun.runtime.forge.tasks.contract import Verdict
from mtrun.runtime.measure.digest import sha256_of

Message = Mapping[str, str]  # {"role", "content"}
Prompt = str | tuple[Message, ...]  # raw text to go on with, or a chat

TRUNCATED = "the answer was cut off before its end."


@dataclass(frozen=True)
class Task:
    """One task. `check` is a pure function of the answer's text and accepts every right answer."""

    id: str  # unique in its set
    family: str
    prompt: Prompt
    expect: Any  # plain JSON types: what `check` compares with
    check: Callable[[str], Verdict] = field(compare=False, repr=False)


@dataclass(frozen=True)
class TaskSet:
    """A set. The place of a task decides its random draws, so tasks keep their order."""

    name: str  # what `open_set` opens again
    tasks: tuple[Task, ...]
    max_tokens: int  # of an answer; what does not end within it is truncated
    stop: tuple[str, ...] = ()  # texts that end an answer and are no part of it
    excerpt: bool = False  # the first `max_tokens` of an answer are all that is asked for: none is truncated

    @property
    def sha256(self) -> str:
        """Hex sha256 of every task: what is asked and what is expected, in order."""
        return sha256_of([[one.id, one.family, _plain(one.prompt), one.expect] for one in self.tasks])


def judge(task: Task, text: str, truncated: bool) -> Verdict:
    """The strict verdict: a truncated answer is wrong, whatever its text holds so far."""
    return Verdict(False, TRUNCATED) if truncated else task.check(text)


def question(text: str) -> tuple[Message, ...]:
    """A chat of one question."""
    return ({"role": "user", "content": text},)


def _plain(prompt: Prompt) -> Any:
    return prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
