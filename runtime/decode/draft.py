"""Drafting: the head proposes D tokens, each drawn from a row that is kept for the judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from mtrun.kernels.arrays import Array
from mtrun.kernels.draft import DraftRows, DraftScorer, draw_token, stack_rows
from mtrun.kernels.rows import RowFilter, Rows
from mtrun.runtime.decode.penalties import Adjuster
from mtrun.runtime.packs.contract import Caches, Head, Trunk


@dataclass(frozen=True)
class Drafted:
    """D draft tokens and the rows they were drawn from; tokens [D] int32, rows None when D = 0."""

    tokens: Any
    rows: Rows | None


@dataclass
class Pairs:
    """Verified pairs that the head has not read yet: hidden [1, L, H] of positions, and the L tokens that followed."""

    hidden: Array
    tokens: list[int]


class Drafter(Protocol):
    """Proposes continuations. `observe` is told of every verified pair, `draft` uses the last of them."""

    def observe(self, pairs: Pairs) -> None: ...

    def draft(self, depth: int, how: RowFilter, adjust: Adjuster, uniforms: Any) -> Drafted: ...


class MtpDrafter:
    """Drafts with a recursive MTP head and its own cache of verified pairs (acceptance falls without that history)."""

    def __init__(self, trunk: Trunk, head: Head, score: DraftScorer, rows: DraftRows) -> None:
        self.trunk, self.head, self.score, self.rows = trunk, head, score, rows
        self.caches: Caches = head.new_caches()
        self._pending: Pairs | None = None

    def observe(self, pairs: Pairs) -> None:
        """Queues verified pairs; long queues (prefill) are read at once, so that memory stays bounded."""
        if self._pending is not None:
            self._read(self._pending)
            if self.trunk.xp is mx:
                mx.eval([cache.state for cache in self.caches])
        self._pending = pairs

    def _read(self, pairs: Pairs) -> Any:
        xp = self.trunk.xp
        embedded = self.trunk.embed(xp.array([pairs.tokens], dtype=xp.int32))
        return self.head.forward(pairs.hidden, embedded, self.caches, 0)

    def draft(self, depth: int, how: RowFilter, adjust: Adjuster, uniforms: Any) -> Drafted:
        """Reads the pending pairs with their verified hidden states, chains, drops what the chain left in the cache.

        uniforms: [depth]. Nothing is synchronised.
        """
        assert self._pending is not None, "observe comes before draft"
        state = self._read(self._pending)[:, -1:]  # [1, 1, H]
        self._pending = None
        xp = self.trunk.xp
        tokens: list[Any] = []
        rows: list[Rows] = []
        for step in range(depth):
            before = xp.stack(tokens, axis=1) if tokens and adjust.counting else None  # [1, step]
            draft = self.score(state[0])
            draft = type(draft)(adjust(draft.logits, before, draft.ids), draft.ids)
            rows.append(self.rows(draft, how))
            tokens.append(draw_token(rows[-1], uniforms[step : step + 1]))
            if step + 1 < depth:
                state = self.head.forward(state, self.trunk.embed(tokens[-1][None]), self.caches, step + 1)
        self._drop(depth - 1)
        return Drafted(xp.concatenate(tokens), stack_rows(rows))

    def _drop(self, count: int) -> None:
        """Removes the chain's own rows: the next pairs carry verified hidden states instead."""
        for cache in self.caches if count > 0 else ():
            if cache.trim(count) != count:
                raise RuntimeError(f"the draft head's {type(cache).__name__} did not drop {count} draft rows")
