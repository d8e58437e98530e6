"""Self-samples: chats that a pack writes under its own sampler, in numbered parts of the format of `corpus`.

A chat is a pure function of (seed, its number), so parts can be made in any order and an interrupted run goes on part
by part. `sample.json` says what a folder's chats are; a folder takes none of another pack, sampler or seed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.forge import corpus, topics
from mtrun.runtime.forge.claim import settle
from mtrun.runtime.forge.dialogue import Dialogue
from mtrun.runtime.packs.fields import one_line
from mtrun.runtime.requests import Chunk

if TYPE_CHECKING:
    from mtrun.runtime.engine import Engine

PLAN = "sample.json"
_TRIES = 3  # at a user turn that came out empty, before a built-in one takes its place
_LEAST_ROOM = 8  # tokens of context that an answer must have left
_GOLDEN, _SILVER = (5**0.5 - 1) / 2, 2**0.5 - 1  # irrational steps: any run of chats has its share, without a pattern


@dataclass(frozen=True)
class SampleConfig:
    """What decides the chats besides pack and sampler."""

    chats: int
    first: int = 0  # number of the first chat
    part: int = 64  # chats a file
    max_tokens: int = 300  # of an answer
    user_tokens: int = 60  # of a user turn that the model writes
    self_turns: float = 0.0  # share of user turns that the model writes itself
    second_turns: float = 0.0  # share of chats with a second question and answer
    seed: int = 0


@dataclass(frozen=True)
class Chat:
    """One conversation."""

    ids: list[int]
    response: list[bool]  # the token was sampled as the assistant, its end token included
    turns: int  # answers
    self_turns: int  # user turns that the model wrote


class _Use(IntEnum):
    ORDER = 0
    ANSWER = 1
    USER = 2
    FOLLOW_UP = 3


def read_prompts(path: Path | None) -> tuple[str, ...]:
    """The prompts of a file, one a line, or the built-in ones. Raises ConfigurationError."""
    if path is None:
        return tuple(topics.prompts())
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path} cannot be read ({one_line(error)}): give --prompts a text file, one a line."
        ) from error
    found = tuple(line.strip() for line in lines if line.strip())
    if not found:
        raise ConfigurationError(f"{path} holds no prompt: write one on each line.")
    return found


class Sampler:
    """Writes chats with an engine that is loaded; its law has to keep the model's own distribution."""

    def __init__(self, engine: Engine, prompts: Sequence[str], config: SampleConfig, sampling: dict[str, Any]) -> None:
        """`sampling`: fields of `Sampling` that differ from the pack's. Raises ConfigurationError."""
        law = engine.law()
        if not law["distribution_exact"]:
            raise ConfigurationError(f"the law {law['law']} changes what the pack would say: drop it, exact is used.")
        self._engine, self._prompts, self._config, self._sampling = engine, prompts, config, sampling
        self._order = np.random.default_rng([config.seed, _Use.ORDER]).permutation(len(prompts))
        self._eos = frozenset(engine.tokenizer.eos_ids)
        self._dialogue = Dialogue(engine.tokenizer, engine.model_id)
        if config.self_turns:
            self._dialogue.opened()
        if config.second_turns:
            self._dialogue.between("")

    def plan(self, pack: dict[str, str]) -> dict[str, Any]:
        """What `sample.json` records. `pack` is name and trunk identity."""
        from mtrun.runtime.packs.manifest import running_version

        sampler = asdict(self._engine.sampling(self._sampling))
        digest = hashlib.sha256("\n".join(self._prompts).encode()).hexdigest()
        return {
            "format": 1,
            "pack": pack,
            "sampler": {name: value for name, value in sampler.items() if name not in ("seed", "logit_bias")},
            "prompts": {"count": len(self._prompts), "sha256": digest},
            **asdict(self._config),
            "mtrun": running_version(),
        }

    def chat(self, number: int) -> Chat:
        """The chat of that number."""
        config, engine = self._config, self._engine
        ids, turns, own = [], 0, 0
        response: list[bool] = []
        for turn in range(1 + (_step(number, _GOLDEN) < config.second_turns)):
            words = self._own_words(ids, number, turn)
            own += words is not None
            words = words if words is not None else self._given_words(number, turn)
            asked = self._joined(ids, self._dialogue.between(words)) if turn else self._dialogue.asked(words)
            if len(asked) + _LEAST_ROOM > engine.context_limit:
                if turn:
                    break
                limit = engine.context_limit
                raise ConfigurationError(f"a prompt of {len(asked)} tokens leaves no room in {limit}: shorten it.")
            answer = self._answer(asked, self._seed(number, turn, _Use.ANSWER))
            response += [False] * (len(asked) - len(ids)) + [True] * len(answer)
            ids, turns = asked + answer, turns + 1
        return Chat(ids, response, turns, own)

    def _own_words(self, ids: list[int], number: int, turn: int) -> str | None:
        """A user turn by the model itself, where the lot falls so; None where not, or where it says nothing."""
        if _step(2 * number + turn, _SILVER) >= self._config.self_turns:
            return None
        prompt = self._joined(ids, self._dialogue.between(None)) if turn else self._dialogue.opened()
        closing = self._dialogue.closing()
        if len(prompt) + _LEAST_ROOM > self._engine.context_limit:
            return None
        for again in range(_TRIES):
            seed = self._seed(number, turn, _Use.USER, again)
            options = {**self._sampling, "max_tokens": self._config.user_tokens, "stop": (closing,) if closing else ()}
            words = self._engine.generate(prompt, seed=seed, **options).text.strip()
            if words:
                return words
        return None

    def _given_words(self, number: int, turn: int) -> str:
        if turn:
            rng = np.random.default_rng([self._config.seed, number, _Use.FOLLOW_UP])
            return topics.FOLLOW_UPS[int(rng.integers(len(topics.FOLLOW_UPS)))]
        return self._prompts[int(self._order[number % len(self._order)])]

    def _joined(self, ids: list[int], tail: list[int]) -> list[int]:
        """A chat and what follows its last answer, whose end token may stand at the seam of both."""
        return ids + tail[1:] if ids and tail and ids[-1] in self._eos and ids[-1] == tail[0] else ids + tail

    def _answer(self, asked: list[int], seed: int) -> list[int]:
        """Sampled ids, the end token included where the model said it."""
        said: list[int] = []
        events = self._engine.stream(
            asked, seed=seed, max_tokens=self._config.max_tokens, ignore_eos=True, **self._sampling
        )
        for event in events:
            for token in event.token_ids if isinstance(event, Chunk) else ():
                said.append(token)
                if token in self._eos:
                    events.close()  # type: ignore[attr-defined]
                    return said
        return said

    def _seed(self, number: int, turn: int, use: _Use, again: int = 0) -> int:
        state = np.random.SeedSequence([self._config.seed, number, turn, use, again]).generate_state(1, np.uint64)
        return int(state[0] >> np.uint64(11))


def _step(number: int, irrational: float) -> float:
    return (0.5 + number * irrational) % 1.0


@dataclass(frozen=True)
class Done:
    """Where a run stands after a chat."""

    path: Path  # the part in work
    chats: int  # in all parts, made now or before
    answer_tokens: int  # sampled now


def write(sampler: Sampler, config: SampleConfig, folder: Path) -> Iterator[Done]:
    """Makes every missing part; a part appears whole or not at all. Raises ConfigurationError."""
    done = tokens = 0
    for start in range(0, config.chats, config.part):
        path = folder / f"{corpus.PART}{start // config.part:04d}.npz"
        count = min(config.part, config.chats - start)
        if path.exists():
            done += count
            yield Done(path, done, tokens)
            continue
        chats: list[Chat] = []
        for number in range(config.first + start, config.first + start + count):
            chats.append(sampler.chat(number))
            done, tokens = done + 1, tokens + sum(chats[-1].response)
            yield Done(path, done, tokens)
        _write_part(path, chats)


def _write_part(path: Path, chats: list[Chat]) -> None:
    response = np.array([bit for chat in chats for bit in chat.response], dtype=bool)
    arrays = {
        "ids": np.array([token for chat in chats for token in chat.ids], dtype=np.int32),
        "lengths": np.array([len(chat.ids) for chat in chats], dtype=np.int32),
        "response": np.packbits(response),
        "turns": np.array([chat.turns for chat in chats], dtype=np.uint8),
        "self_turns": np.array([chat.self_turns for chat in chats], dtype=np.uint8),
    }
    temporary = path.with_name(f".{path.name}.tmp.npz")
    try:
        np.savez(temporary, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigurationError(
            f"{path} cannot be written ({error.strerror}): free space and run it again."
        ) from error


def claim(folder: Path, plan: dict[str, Any]) -> None:
    """Writes `sample.json`, or checks the one that is there. Raises ConfigurationError on a difference."""
    path = folder / PLAN
    try:
        theirs = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read ({one_line(error)}): choose another --out.") from error
    settle(path, theirs, plan, "chats")
