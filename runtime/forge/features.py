"""Feature shards: what one forward of the trunk leaves behind for training a head, so that no epoch pays for it again.

A shard is an .npz of some chats laid end to end:
    ids       [N] uint16 or int32   token ids
    lengths   [C] int32             tokens of each chat
    response  [N] bool              the token was sampled by the model as the assistant
    hidden    [N, H] float16        trunk state of each position, after the final norm
    top_ids   [N, T] uint16/int32   likeliest next tokens of each position, best first
    top_logp  [N, T] float16        their log-probabilities (full vocabulary, temperature 1); -inf where not wanted
Row j of top_* is wanted where token j + 1 is a response token of the same chat.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mtrun.runtime.errors import ConfigurationError

FIELDS = ("ids", "lengths", "response", "hidden", "top_ids", "top_logp")


@dataclass(frozen=True)
class Chats:
    """A padded batch: B chats of at most L tokens."""

    ids: np.ndarray  # [B, L] int32, 0 past the end
    hidden: np.ndarray  # [B, L, H] float32
    wanted: np.ndarray  # [B, L] bool: the row of this position is a training target
    top_ids: np.ndarray  # [B, L, T] int32
    top_logp: np.ndarray  # [B, L, T] float32


def shard_paths(folder: Path) -> list[Path]:
    """The shards of a folder in name order. Raises ConfigurationError when there is none."""
    paths = sorted(path for path in folder.glob("*.npz") if not path.name.endswith(".tmp.npz"))
    if not paths:
        raise ConfigurationError(f"{folder} holds no feature shards (*.npz): run `mtrun forge features` first.")
    return paths


def read_shard(path: Path, top: int) -> list[dict[str, np.ndarray]]:
    """The chats of a shard, each a dict of its own rows; only the `top` likeliest tokens are kept."""
    try:
        with np.load(path) as data:
            missing = [name for name in FIELDS if name not in data]
            if missing:
                raise ConfigurationError(f"{path} is no feature shard: it lacks {', '.join(missing)}.")
            arrays = {name: data[name] for name in FIELDS}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}): delete it and run the features again.") from error
    if arrays["top_ids"].shape[1] < top:
        raise ConfigurationError(
            f"{path} keeps {arrays['top_ids'].shape[1]} tokens a row and top_k is {top}: make them with --top {top}."
        )
    ends = np.cumsum(arrays["lengths"])
    chats = []
    for start, end in zip(ends - arrays["lengths"], ends, strict=True):
        chat = {name: arrays[name][start:end] for name in ("ids", "hidden")}
        chat["top_ids"], chat["top_logp"] = arrays["top_ids"][start:end, :top], arrays["top_logp"][start:end, :top]
        chat["wanted"] = np.append(arrays["response"][start + 1 : end], False)
        chats.append(chat)
    return chats


def batches(path: Path, size: int, top: int, rng: np.random.Generator) -> Iterator[Chats]:
    """The chats of a shard in batches of like length (little padding), in random order."""
    chats = sorted(read_shard(path, top), key=lambda chat: len(chat["ids"]))
    groups = [chats[i : i + size] for i in range(0, len(chats), size)]
    for i in rng.permutation(len(groups)):
        yield pad(groups[i])


def pad(group: list[dict[str, np.ndarray]]) -> Chats:
    """Chats of one group as a padded batch."""
    length = max(len(chat["ids"]) for chat in group)

    def stack(name: str, dtype: type) -> np.ndarray:
        first = group[0][name]
        out = np.zeros((len(group), length, *first.shape[1:]), dtype=dtype)
        for row, chat in zip(out, group, strict=True):
            row[: len(chat[name])] = chat[name]
        return out

    return Chats(
        ids=stack("ids", np.int32),
        hidden=stack("hidden", np.float32),
        wanted=stack("wanted", np.bool_),
        top_ids=stack("top_ids", np.int32),
        top_logp=stack("top_logp", np.float32),
    )


def vocabulary_mass(paths: list[Path], vocab_size: int) -> np.ndarray:
    """[V] float64 summed trunk probability of each token over all wanted rows."""
    mass = np.zeros(vocab_size, dtype=np.float64)
    for path in paths:
        with np.load(path) as data:
            probs = np.exp(data["top_logp"].astype(np.float32))
            np.add.at(mass, data["top_ids"].reshape(-1).astype(np.int64), probs.reshape(-1))
    return mass


def rank_vocabulary(paths: list[Path], vocab_size: int, size: int, always: tuple[int, ...]) -> np.ndarray:
    """[size] int32 ascending ids with the largest summed trunk probability over all wanted rows, `always` included.

    The ranking of FR-Spec (arXiv 2502.14856), by the trunk's own mass instead of corpus counts.
    """
    mass = vocabulary_mass(paths, vocab_size)
    mass[list(always)] = np.inf
    return np.sort(np.argsort(-mass, kind="stable")[:size]).astype(np.int32)


@dataclass(frozen=True)
class Counted:
    """What a folder of shards holds."""

    shards: int
    chats: int
    tokens: int
    response_tokens: int


def count(paths: list[Path]) -> Counted:
    """Counts over shards, without reading hidden states."""
    chats = tokens = responses = 0
    for path in paths:
        with np.load(path) as data:
            chats += len(data["lengths"])
            tokens += len(data["ids"])
            responses += int(data["response"].sum())
    return Counted(len(paths), chats, tokens, responses)
