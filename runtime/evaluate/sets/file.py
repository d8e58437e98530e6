"""A set in a JSONL file: one object a line, {"id", "family", "prompt", "answers": [...]}.

An answer is right when any accepted one occurs in it as whole words; case and punctuation do not matter.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.evaluate.contract import Prompt, Task, TaskSet, question
from mtrun.runtime.forge.tasks.contract import Verdict

MAX_TOKENS = 256
FAMILY = "tasks"  # where a line names none
_BETWEEN = re.compile(r"[\W_]+")


def open_file(name: str) -> TaskSet:
    """The set in the file `name`; `prompt` is a question, or a list of chat messages. Raises ConfigurationError."""
    return read_set(Path(name), name, MAX_TOKENS)


def read_set(path: Path, name: str, max_tokens: int, asked: str = "prompt", family: str = FAMILY) -> TaskSet:
    """The set in `path`; the key `asked` holds the question. Raises ConfigurationError with the line at fault."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}): give a JSONL file of tasks.") from error
    tasks: dict[str, Task] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        task = _task(line, f"{path}, line {number}", asked, family)
        if task.id in tasks:
            raise ConfigurationError(f"{path}, line {number} repeats the id {task.id!r}: give every task its own.")
        tasks[task.id] = task
    if not tasks:
        raise ConfigurationError(f"{path} holds no task: write one JSON object a line.")
    return TaskSet(name, tuple(tasks.values()), max_tokens)


def _task(line: str, where: str, asked: str, family: str) -> Task:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"{where} is no JSON object ({error}): write one a line.") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"{where} is no JSON object: write one a line.")
    named = {"family": family, **found}
    for key in ("id", "family"):
        if not isinstance(named.get(key), str) or not named[key]:
            raise ConfigurationError(f'{where} needs "{key}", a text.')
    answers = found.get("answers")
    if not isinstance(answers, list) or not answers or not all(isinstance(one, str) and words(one) for one in answers):
        raise ConfigurationError(f'{where} needs "answers", a list of texts that hold a letter or a digit each.')
    check = partial(holds_any, tuple(answers))
    return Task(named["id"], named["family"], _prompt(found.get(asked), where, asked), answers, check)


def _prompt(found: Any, where: str, asked: str) -> Prompt:
    if isinstance(found, str) and found.strip():
        return question(found)
    messages = found if isinstance(found, list) else []
    if messages and all(isinstance(one, dict) and one.keys() == {"role", "content"} for one in messages):
        return tuple(messages)
    raise ConfigurationError(f'{where} needs "{asked}", a text or a list of chat messages.')


def words(text: str) -> str:
    """`text` as lower-case words with one space between two: what is compared."""
    return _BETWEEN.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()


def holds_any(answers: Sequence[str], text: str) -> Verdict:
    """Right when one of `answers` occurs in `text` as whole words."""
    said = f" {words(text)} "
    for answer in answers:
        if f" {words(answer)} " in said:
            return Verdict(True, f"the answer holds {answer!r}.")
    return Verdict(False, f"the answer holds none of {', '.join(map(repr, answers))}.")
