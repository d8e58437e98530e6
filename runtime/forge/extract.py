"""Feature extraction: one forward of the trunk over each chat, kept as shards (format: `features`).

Batches take chats of like length, so little is computed for padding. A shard appears whole or not at all, and one that
is there already is not made again; `features.json` beside the shards says what they were made of, so that shards of
another pack, file or order never mix.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtrun.kernels.arrays import logsumexp, of_module, take
from mtrun.kernels.rows import top_ids
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.forge import corpus
from mtrun.runtime.forge.claim import settle
from mtrun.runtime.forge.corpus import Corpus
from mtrun.runtime.packs.contract import Trunk

ORIGIN = "features.json"
_ROWS = 256  # full-vocabulary rows held at once


@dataclass(frozen=True)
class FeatureConfig:
    """What decides the content of the shards besides the trunk and the chats."""

    top: int = 64  # likeliest tokens kept of each row
    batch: int = 8  # chats a forward
    shard: int = 128  # chats a shard
    limit: int | None = None  # chats in all, None = every one
    seed: int = 0  # of the order of chats
    every_row: bool = False  # rows of all tokens become targets, not of responses alone


def origin(config: FeatureConfig, pack: dict[str, str], data: Path) -> dict[str, Any]:
    """What `features.json` records. `pack` is name and trunk identity. Batch size changes rounding only."""
    kept = {name: value for name, value in asdict(config).items() if name != "batch"}
    return {
        "format": 1,
        "pack": pack,
        "data": {"file": data.name, "sha256": corpus.digest(data)},
        **kept,
        "made_on": platform.platform(terse=True),
    }


def claim(folder: Path, made_of: dict[str, Any]) -> None:
    """Writes `features.json`, or checks the one that is there. Raises ConfigurationError on a difference."""
    settle(folder / ORIGIN, read_origin(folder), made_of, "shards", aside=("made_on",))


def read_origin(folder: Path) -> dict[str, Any] | None:
    """The content of the folder's `features.json`, None where there is none. Raises ConfigurationError."""
    path = folder / ORIGIN
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}): make the features again.") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path} holds no JSON object: make the features again.")
    return found


@dataclass(frozen=True)
class Plan:
    """The shards of a run. `chats` [K] int64 are in the seeded order."""

    config: FeatureConfig
    chats: np.ndarray
    folder: Path

    @staticmethod
    def of(corpus: Corpus, config: FeatureConfig, folder: Path) -> Plan:
        order = np.random.default_rng(config.seed).permutation(len(corpus.lengths))
        return Plan(config, order[: config.limit], folder)

    def shards(self) -> Iterator[tuple[Path, np.ndarray]]:
        """(path, chats [<= shard]) of every shard, made or not."""
        for start in range(0, len(self.chats), self.config.shard):
            name = f"{start // self.config.shard:04d}.npz"
            yield self.folder / name, self.chats[start : start + self.config.shard]


def extract(trunk: Trunk, corpus: Corpus, plan: Plan) -> Iterator[tuple[Path, int, bool]]:
    """Makes every missing shard; yields (its path, tokens done, whether they were just computed) as work proceeds."""
    for path, chats in plan.shards():
        chosen = corpus.take(chats)
        if path.exists():
            yield path, len(chosen.ids), False
            continue
        hidden = np.zeros((len(chosen.ids), trunk.hidden_size), dtype=np.float32)  # [N, H]
        for part in _forwards(trunk, chosen, plan.config.batch, hidden):
            yield path, part, True
        _write(path, _shard(trunk, chosen, hidden, plan.config))


def _forwards(trunk: Trunk, chosen: Corpus, batch: int, hidden: np.ndarray) -> Iterator[int]:
    """Fills hidden [N, H] batch by batch; yields the tokens of each."""
    ends = np.cumsum(chosen.lengths)
    by_length = np.argsort(chosen.lengths, kind="stable")
    batch = batch if trunk.xp is not np else 1  # a trunk that computes on the host takes one sequence
    for start in range(0, len(by_length), batch):
        group = by_length[start : start + batch]
        ids = np.zeros((len(group), int(chosen.lengths[group].max())), dtype=np.int32)  # [B, L], 0 past the end
        for row, chat in zip(ids, group, strict=True):
            row[: chosen.lengths[chat]] = chosen.ids[ends[chat] - chosen.lengths[chat] : ends[chat]]
        states = np.array(
            trunk.forward(of_module(ids, trunk.xp), trunk.new_caches(), "none").hidden
        )  # [B, L, H] float32
        for state, chat in zip(states, group, strict=True):
            hidden[ends[chat] - chosen.lengths[chat] : ends[chat]] = state[: chosen.lengths[chat]]
        yield int(chosen.lengths[group].sum())


def _shard(trunk: Trunk, chosen: Corpus, hidden: np.ndarray, config: FeatureConfig) -> dict[str, np.ndarray]:
    """The arrays of one shard."""
    vocab = trunk.vocab_size
    small = np.uint16 if vocab <= 2**16 else np.int32
    response = np.ones_like(chosen.response) if config.every_row else chosen.response
    top = min(config.top, vocab)
    ids = np.zeros((len(hidden), top), dtype=small)
    logp = np.full((len(hidden), top), -np.inf, dtype=np.float16)
    rows = wanted_rows(response, chosen.lengths)
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        ids[some], logp[some] = top_rows(trunk, hidden[some], top)
    return {
        "ids": chosen.ids.astype(small),
        "lengths": chosen.lengths.astype(np.int32),
        "response": response,
        "hidden": hidden.astype(np.float16),
        "top_ids": ids,
        "top_logp": logp,
    }


def wanted_rows(response: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Positions [W] whose next token is a response token of the same chat, from response [N] and lengths [C]."""
    need = np.append(response[1:], False)
    need[np.cumsum(lengths) - 1] = False
    return np.flatnonzero(need)


def top_rows(trunk: Trunk, hidden: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """hidden [R, H] -> ids [R, top] best first and their log-probabilities over the full vocabulary [R, top]."""
    logits = trunk.project(of_module(hidden, trunk.xp))  # [R, V]
    ids = top_ids(logits, top)
    # A row at a time: on the host a row stays in the cache between its passes.
    total = trunk.xp.concatenate([logsumexp(row[None]) for row in logits])
    return np.array(ids), np.array(take(logits, ids) - total)


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    temporary = path.with_suffix(".tmp.npz")
    try:
        np.savez(temporary, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigurationError(
            f"{path} cannot be written ({error.strerror}): free space and run it again."
        ) from error
