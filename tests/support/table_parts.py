"""A target and a draft that are plain tables of next-token logits: the whole loop at a third of a tiny llama's cost.

The row of a position depends on the token before it alone, so every joint law can be enumerated from the two tables.
"""

from __future__ import annotations

import itertools
from typing import Any

import mlx.core as mx
import numpy as np

from mtrun.kernels.rows import RowFilter
from mtrun.runtime.acceptance.exact import ExactLaw
from mtrun.runtime.packs.contract import Caches, TrunkOut
from mtrun.runtime.parts import Parts, stock_parts


class TableTrunk:
    """`contract.Trunk` whose hidden state is its own row of logits, in arrays of `xp`. Keeps no cache."""

    def __init__(self, logits: np.ndarray, xp: Any = mx) -> None:
        self.table = xp.array(logits.astype(np.float32))  # [V, V]
        self.vocab_size = self.hidden_size = logits.shape[1]
        self.context_limit = 2**20
        self.xp = xp

    def new_caches(self) -> Caches:
        return []

    def embed(self, ids: mx.array) -> mx.array:
        return ids[..., None]

    def forward(self, ids: mx.array, caches: Caches, logits: str) -> TrunkOut:
        rows = self.table[ids]  # [1, L, V]
        kept = {"all": rows[0], "last": rows[0, -1:], "none": None}
        return TrunkOut(rows, kept[logits])

    def project(self, hidden: mx.array) -> mx.array:
        return hidden

    def projection_rows(self, ids: mx.array) -> mx.array:
        return self.xp.eye(self.vocab_size, dtype=self.xp.float32)[ids]


class TableHead:
    """`contract.Head` that answers with the draft's row of the token it is fed."""

    max_depth = 8

    def __init__(self, logits: np.ndarray, xp: Any = mx) -> None:
        self.table = xp.array(logits.astype(np.float32))

    def new_caches(self) -> Caches:
        return []

    def forward(self, hidden: mx.array, embedded: mx.array, caches: Caches, depth: int) -> mx.array:
        return self.table[embedded[..., 0]]


def tables(vocab: int, seed: int = 0, spread: float = 1.0, gap: float = 0.7) -> tuple[np.ndarray, np.ndarray]:
    """Target and draft logits [V, V] that agree about halfway; `gap` is how far the draft strays."""
    rng = np.random.default_rng(seed)
    target = rng.normal(0.0, spread, (vocab, vocab))
    return target, target + rng.normal(0.0, gap, (vocab, vocab))


def table_parts(target: np.ndarray, draft: np.ndarray, law: Any = None, draft_ids: Any = None, xp: Any = mx) -> Parts:
    return stock_parts(TableTrunk(target, xp), TableHead(draft, xp), draft_ids, law or ExactLaw())


def reference_row(logits: np.ndarray, how: RowFilter) -> np.ndarray:
    """[V] filtered row in float64, written from the definition: every filter is measured on the full softmax row."""
    full = np.exp((logits - logits.max()) / how.temperature)
    full /= full.sum()
    order = sorted(range(len(full)), key=lambda token: (-full[token], token))
    before, keep = 0.0, []
    for rank, token in enumerate(order):
        inside = before < how.top_p and (how.top_k == 0 or rank < how.top_k) and full[token] >= how.min_p * full.max()
        if rank == 0 or inside:
            keep.append(token)
        before += full[token]
    row = np.zeros(len(full))
    row[keep] = full[keep]
    return row / row.sum()


def enumerate_joint(row, start: tuple[int, ...], length: int, vocab: int) -> dict[tuple[int, ...], float]:
    """The law of `length` tokens after `start`, from `row(prefix) -> [V]`."""
    law = {(): 1.0}
    for _ in range(length):
        law = {
            (*path, token): mass * float(step)
            for path, mass in law.items()
            for token, step in enumerate(row((*start, *path)))
        }
    assert len(law) == len(list(itertools.product(range(vocab), repeat=length)))
    return law
