"""Drafting: the head proposes D tokens, each drawn from a row that is kept for the judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from mtrun.kernels.arrays import Array, evaluate
from mtrun.kernels.draft import DraftChain, Drafted, DraftRows, DraftScorer, draw_token, stack_rows
from mtrun.kernels.rows import RowFilter, Rows
from mtrun.runtime.decode.penalties import Adjuster
from mtrun.runtime.packs.contract import Caches, Head, Trunk

ENTRIES = 128  # separate arrays in the queue of verified pairs; more are joined into one


@dataclass
class Pairs:
    """Verified pairs that the head has not read yet: hidden [1, L, H] of positions, and the L tokens that followed."""

    hidden: Array
    tokens: list[int]


class Drafter(Protocol):
    """Proposes continuations. `observe` is told of every verified pair, `draft` uses the last of them."""

    @property
    def source(self) -> str | None:
        """Where the next drafts come from, as far as committed tokens tell; None = there will be none."""
        ...

    @property
    def max_depth(self) -> int:
        """The longest chain it can draft."""
        ...

    def observe(self, pairs: Pairs) -> None: ...

    def catch_up(self) -> None:
        """Reads what was observed, now: called between the chunks of a prompt, so that no long one waits."""
        ...

    def draft(self, depth: int, how: RowFilter, adjust: Adjuster, uniforms: Any) -> Drafted: ...


class Drafting(Protocol):
    """What stands around the head's drafter: the seam `Parts.drafting`."""

    def max_depth(self, head_depth: int) -> int:
        """The deepest a cycle may draft beside a head that chains `head_depth` tokens, 0 = no head."""
        ...

    def around(self, drafter: Drafter | None) -> Drafter | None:
        """A request's drafter, from the head's fresh one (None = no head)."""
        ...


@dataclass(frozen=True)
class HeadAlone:
    """The stock `Parts.drafting`: whatever the head says, and nothing without one."""

    def max_depth(self, head_depth: int) -> int:
        return head_depth

    def around(self, drafter: Drafter | None) -> Drafter | None:
        return drafter


class MtpDrafter:
    """Drafts with a recursive MTP head and its own cache of verified pairs (acceptance falls without that history)."""

    def __init__(
        self, trunk: Trunk, head: Head, score: DraftScorer, rows: DraftRows, chain: DraftChain | None = None
    ) -> None:
        self.trunk, self.head, self.score, self.rows, self.chain = trunk, head, score, rows, chain
        self.caches: Caches = head.new_caches()
        self.source, self.max_depth = "head", head.max_depth
        self._pending: list[Pairs] = []

    def observe(self, pairs: Pairs) -> None:
        """Queues verified pairs until a draft needs them: a cycle without one costs the head nothing.

        What waits is one hidden state a token of the reply at most, a fraction of what the trunk's caches hold of it.
        """
        self._pending.append(pairs)
        if len(self._pending) > ENTRIES:
            joined = self._joined()
            evaluate(joined.hidden)
            self._pending = [joined]

    def catch_up(self) -> None:
        if self._pending:
            self._read_pending()
            if self.trunk.xp is mx:
                mx.eval([cache.state for cache in self.caches])

    def _read_pending(self) -> Any:
        """Reads the queue in one forward and empties it; states [1, L, H]."""
        pairs, self._pending = self._joined(), []
        return self._read(pairs)

    def _joined(self) -> Pairs:
        """The queue as one run of pairs. Not empty."""
        if len(self._pending) == 1:
            return self._pending[0]
        hidden = self.trunk.xp.concatenate([pairs.hidden for pairs in self._pending], axis=1)
        return Pairs(hidden, [token for pairs in self._pending for token in pairs.tokens])

    def _read(self, pairs: Pairs) -> Any:
        xp = self.trunk.xp
        embedded = self.trunk.embed(xp.array([pairs.tokens], dtype=xp.int32))
        return self.head.forward(pairs.hidden, embedded, self.caches, 0)

    def draft(self, depth: int, how: RowFilter, adjust: Adjuster, uniforms: Any) -> Drafted:
        """Reads the pending pairs with their verified hidden states, chains, drops what the chain left in the cache.

        uniforms: [depth]. Nothing is synchronised.
        """
        assert self._pending, "observe comes before draft"
        state = self._read_pending()[:, -1:]  # [1, 1, H]
        if self.chain is not None and not adjust.active:
            drafted = self.chain(state[0, 0], self.caches, depth, how, uniforms)
        else:
            drafted = self._step_by_step(state, depth, how, adjust, uniforms)
        self._drop(depth - 1)
        return drafted

    def _step_by_step(self, state: Any, depth: int, how: RowFilter, adjust: Adjuster, uniforms: Any) -> Drafted:
        """A chain from state [1, 1, H] through the scorer and rows in force. Leaves depth - 1 rows in the cache."""
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
        return Drafted(xp.concatenate(tokens), stack_rows(rows))

    def _drop(self, count: int) -> None:
        """Removes the chain's own rows: the next pairs carry verified hidden states instead."""
        for cache in self.caches if count > 0 else ():
            if cache.trim(count) != count:
                raise RuntimeError(f"the draft head's {type(cache).__name__} did not drop {count} draft rows")
