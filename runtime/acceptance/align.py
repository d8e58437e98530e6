"""Target and draft rows on shared slots: laws compare them entry by entry.

A row lives on the ids that its filter left, so two rows of one position differ in support. Sums of the laws run over
the union.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mtrun.kernels.arrays import Array, argsort, cast, namespace, pad, pick, put, take
from mtrun.kernels.rows import Rows
from mtrun.runtime.acceptance.law import Block


@dataclass(frozen=True)
class Aligned:
    """D positions on U slots. Every value of the two inputs stands, unchanged, in exactly one slot."""

    ids: Array | None  # [D, U] int32 ascending by row; None = dense, slot i is token i
    p: Array  # [D, U] target probabilities
    q: Array  # [D, U] draft probabilities
    slots: Array  # [D] int32 slot of each drafted token
    drafted_mass: Array  # [D] q at each drafted token; a value that is not > 0 at the sync breaks a contract: raise

    def block(self, coins: Array) -> Block:
        """The block that laws judge, with coins [D] in [0, 1)."""
        return Block(self.p, self.q, self.slots, coins)


def align(p: Rows, q: Rows, drafted: Array) -> Aligned:
    """Puts D target rows p and D draft rows q on shared slots; drafted [D] int32 are token ids. Lazy.

    Two compact inputs give U = K_p + K_q: an id that both hold takes the first of its two neighbouring slots and the
    second carries 0 in both. A dense input makes the result dense, U = the widest; compact ids must lie below U.
    """
    tokens = cast(drafted, namespace(drafted).int32)
    if p.ids is None or q.ids is None:
        return _dense(p, q, tokens)
    return _compact(p.ids, p.probs, q.ids, q.probs, tokens)


def _dense(p: Rows, q: Rows, drafted: Any) -> Aligned:
    width = max(rows.probs.shape[-1] for rows in (p, q) if rows.ids is None)
    target, draft = _scatter(p, width), _scatter(q, width)
    return Aligned(None, target, draft, drafted, pick(draft, drafted))


def _scatter(rows: Rows, width: int) -> Any:
    """[D, width] dense values; token ids past a narrower dense row have probability 0."""
    if rows.ids is None:
        missing = width - rows.probs.shape[-1]
        return pad(rows.probs, 0, missing) if missing else rows.probs
    empty = namespace(rows.probs).zeros((rows.probs.shape[0], width), dtype=rows.probs.dtype)
    return put(empty, rows.ids, rows.probs)


def _compact(p_ids: Any, p: Any, q_ids: Any, q: Any, drafted: Any) -> Aligned:
    xp = namespace(p)
    both = cast(xp.concatenate([p_ids, q_ids], axis=-1), xp.int32)  # [D, U]
    order = argsort(both)  # stable: of two equal ids the one of p comes first
    ids = take(both, order)
    values = take(xp.concatenate([p, q], axis=-1), order)
    target_here = order < p.shape[-1]
    target = xp.where(target_here, values, 0)
    draft = _merge(xp.where(target_here, 0, values), ids[:, 1:] == ids[:, :-1])
    here = ids == drafted[:, None]
    mass = xp.sum(xp.where(here, draft, 0), axis=-1)
    return Aligned(ids, target, draft, cast(xp.argmax(here, axis=-1), xp.int32), mass)


def _merge(values: Any, twin: Any) -> Any:
    """Moves the value of a slot that repeats the id before it (twin [D, U - 1]) onto that slot, which holds 0."""
    xp = namespace(values)
    moved = xp.where(twin, values[:, 1:], 0)
    return xp.where(pad(twin, 1, 0, False), 0, values + pad(moved, 0, 1))


def divergence(p: Any, q: Any) -> Any:
    """[D] total variation distance D_TV(p, q) = sum max(0, p - q) of rows [D, U] on shared slots."""
    xp = namespace(p)
    return xp.sum(xp.maximum(p - q, 0), axis=-1)
