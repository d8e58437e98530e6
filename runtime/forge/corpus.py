"""Chats to make features of: token ids of whole conversations, and which tokens the model answered with.

The file is an .npz of C chats laid end to end:
    ids       [N] integer   token ids, templates included
    lengths   [C] integer   tokens of each chat; they sum to N
    response  [ceil(N / 8)] uint8, the bits of np.packbits (or [N] bool): 1 = sampled by the model as the assistant
A folder of such files, `part-0000.npz` and so on, is the chats of all of them in that order.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mtrun.runtime.errors import ConfigurationError

PART = "part-"
_FIELDS = ("ids", "lengths", "response")


@dataclass(frozen=True)
class Corpus:
    """C chats laid end to end, N tokens in all."""

    ids: np.ndarray  # [N] int32
    lengths: np.ndarray  # [C] int64
    response: np.ndarray  # [N] bool

    def take(self, chats: np.ndarray) -> Corpus:
        """The chosen chats [K] in the order given."""
        ends = np.cumsum(self.lengths)
        spans = [np.arange(int(ends[chat] - self.lengths[chat]), int(ends[chat])) for chat in chats]
        rows = np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)
        return Corpus(self.ids[rows], self.lengths[chats], self.response[rows])


def files(path: Path) -> list[Path]:
    """The files of `path`: itself, or a folder's parts in order. Raises ConfigurationError where it has none."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob(f"{PART}*.npz"))
    if not found:
        raise ConfigurationError(f"{path} holds no chats ({PART}*.npz): run `mtrun forge sample` with --out {path}.")
    return found


def digest(path: Path) -> str:
    """Hex sha256 of a file, or over the digests of a folder's parts."""
    found = files(path)
    parts = [hashlib.sha256(file.read_bytes()).hexdigest() for file in found]
    return parts[0] if found == [path] else hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read(path: Path, vocab_size: int, context: int) -> Corpus:
    """The chats of a file or of a folder's parts, checked against the pack. Raises ConfigurationError."""
    parts = [_read(file, vocab_size, context) for file in files(path)]
    return Corpus(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.response for part in parts]),
    )


def _read(path: Path, vocab_size: int, context: int) -> Corpus:
    try:
        with np.load(path) as data:
            missing = [name for name in _FIELDS if name not in data]
            if missing:
                raise ConfigurationError(f"{path} lacks {', '.join(missing)}: it must hold {', '.join(_FIELDS)}.")
            ids, lengths, response = (data[name] for name in _FIELDS)
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"{path} is no readable .npz file ({error}): give --data the chats.") from error
    if ids.ndim != 1 or lengths.ndim != 1 or ids.dtype.kind not in "iu" or lengths.dtype.kind not in "iu":
        raise ConfigurationError(f"{path}: ids and lengths must be vectors of integers.")
    if response.dtype == np.uint8 and response.ndim == 1 and len(response) == -(-len(ids) // 8):
        response = np.unpackbits(response)[: len(ids)]
    corpus = Corpus(ids.astype(np.int32), lengths.astype(np.int64), response.astype(bool))
    _check(path, corpus, vocab_size, context)
    return corpus


def _check(path: Path, corpus: Corpus, vocab_size: int, context: int) -> None:
    total, lengths = len(corpus.ids), corpus.lengths
    if not len(lengths) or lengths.min() < 1 or lengths.sum() != total:
        raise ConfigurationError(f"{path}: lengths must be at least 1 and sum to the {total:,} ids.")
    if corpus.response.shape != (total,):
        raise ConfigurationError(f"{path}: response must be np.packbits of one bit an id, for {total:,} ids.")
    if corpus.ids.min() < 0 or corpus.ids.max() >= vocab_size:
        raise ConfigurationError(
            f"{path}: an id lies outside the pack's vocabulary of {vocab_size:,}: choose its pack."
        )
    if lengths.max() > context:
        raise ConfigurationError(f"{path}: a chat has {lengths.max():,} tokens and the pack reads {context:,}: cut it.")
