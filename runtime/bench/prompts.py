"""Prompts of a run: read from a file, and built up to an exact number of tokens for a ladder of contexts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mtrun.runtime.bench.plan import PROMPT_LIMIT
from mtrun.runtime.errors import ConfigurationError

if TYPE_CHECKING:
    from mtrun.runtime.packs.tokenizer import PackTokenizer

SHIPPED = Path(__file__).with_name("prompts.txt")


def read_prompts(path: Path) -> tuple[str, ...]:
    """User turns, one a line. Raises ConfigurationError."""
    try:
        found = tuple(line for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the prompts {path} cannot be read ({error}): name a UTF-8 text file") from error
    if not found:
        raise ConfigurationError(f"{path} holds no prompt: write one a line")
    if len(found) > PROMPT_LIMIT:
        raise ConfigurationError(f"{path} holds {len(found)} prompts: keep at most {PROMPT_LIMIT}")
    return found


def prompt_ids(tokenizer: PackTokenizer, text: str) -> list[int]:
    """A user turn as the ids of a chat's prompt."""
    return tokenizer.encode_chat([{"role": "user", "content": text}])


def long_prompt_ids(tokenizer: PackTokenizer, prompts: Sequence[str], first: int, length: int) -> list[int]:
    """Exactly `length` ids of a chat's prompt: the prompts one after another from number `first`, again and again.

    The user's turn is cut in front of what the chat template puts behind it. Raises ConfigurationError where `length`
    does not hold the template.
    """
    short, other = prompt_ids(tokenizer, "a"), prompt_ids(tokenizer, "b")
    tail = _common_tail(short, other)
    if length < len(short):
        raise ConfigurationError(f"a prompt of {length} tokens does not hold the chat template: ask for {len(short)}")
    texts: list[str] = []
    ids: list[int] = []
    while len(ids) < length:
        # Twice as much each time: a tokenizer is read a logarithmic number of times.
        texts += [prompts[(first + len(texts) + step) % len(prompts)] for step in range(max(len(texts), 1))]
        ids = prompt_ids(tokenizer, " ".join(texts))
    return ids[: length - tail] + ids[len(ids) - tail :]


def fitted(asked: int, contexts: Sequence[int], room: int) -> int | None:
    """Prompt tokens for a context asked for where `room` are free: at most those. None = a smaller context of the run
    takes that much already."""
    if asked <= room:
        return asked
    smaller = max((context for context in contexts if context < asked), default=0)
    return room if room > smaller else None


def _common_tail(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    while count < min(len(left), len(right)) and left[-1 - count] == right[-1 - count]:
        count += 1
    return count
