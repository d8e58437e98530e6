"""The held-out tasks of the embedded pack: sums, differences, lists, word problems and small functions."""

from __future__ import annotations

from functools import partial

from mtrun.runtime.evaluate.contract import Task, TaskSet, question
from mtrun.runtime.forge.tasks import catalogue

MAX_TOKENS = 160


def open_nano() -> TaskSet:
    """164 tasks over five families in turn; none of their contents was trained on."""
    return TaskSet(
        "nano",
        tuple(
            Task(
                id=f"{task.family}-{index:03}",
                family=task.family,
                prompt=question(task.prompt),
                expect=task.expect,
                check=partial(catalogue.check, task),
            )
            for index, task in enumerate(catalogue.held_set())
        ),
        MAX_TOKENS,
    )
