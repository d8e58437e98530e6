"""Target and draft rows on shared slots: laws compare them entry by entry.

A row lives on the ids that its filter left, so two rows of one position differ in support. Sums of the laws run over
the union.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from mtrun.kernels.rows import Rows
from mtrun.runtime.acceptance.law import Block


@dataclass(frozen=True)
class Aligned:
    """D positions on U slots. Every value of the two inputs stands, unchanged, in exactly one slot."""

    ids: mx.array | None  # [D, U] int32 ascending by row; None = dense, slot i is token i
    p: mx.array  # [D, U] target probabilities
    q: mx.array  # [D, U] draft probabilities
    slots: mx.array  # [D] int32 slot of each drafted token
    drafted_mass: (
        mx.array
    )  # [D] q at each drafted token; a value that is not > 0 at the sync is a broken contract: raise

    def block(self, coins: mx.array) -> Block:
        """The block that laws judge, with coins [D] in [0, 1)."""
        return Block(self.p, self.q, self.slots, coins)


def align(p: Rows, q: Rows, drafted: mx.array) -> Aligned:
    """Puts D target rows p and D draft rows q on shared slots; drafted [D] int32 are token ids. Lazy.

    Two compact inputs give U = K_p + K_q: an id that both hold takes the first of its two neighbouring slots and the
    second carries 0 in both. A dense input makes the result dense, U = the widest; compact ids must lie below U.
    """
    if p.ids is None or q.ids is None:
        return _dense(p, q, drafted.astype(mx.int32))
    return _compact(p.ids, p.probs, q.ids, q.probs, drafted.astype(mx.int32))


def _dense(p: Rows, q: Rows, drafted: mx.array) -> Aligned:
    width = max(rows.probs.shape[-1] for rows in (p, q) if rows.ids is None)
    target, draft = _scatter(p, width), _scatter(q, width)
    mass = mx.take_along_axis(draft, drafted[:, None], axis=-1)[:, 0]
    return Aligned(None, target, draft, drafted, mass)


def _scatter(rows: Rows, width: int) -> mx.array:
    """[D, width] dense values; token ids past a narrower dense row have probability 0."""
    if rows.ids is None:
        return mx.pad(rows.probs, [(0, 0), (0, width - rows.probs.shape[-1])])
    empty = mx.zeros((rows.probs.shape[0], width), dtype=rows.probs.dtype)
    return mx.put_along_axis(empty, rows.ids, rows.probs, axis=-1)


def _compact(p_ids: mx.array, p: mx.array, q_ids: mx.array, q: mx.array, drafted: mx.array) -> Aligned:
    both = mx.concatenate([p_ids, q_ids], axis=-1).astype(mx.int32)  # [D, U]
    order = mx.argsort(both, axis=-1)
    ids = mx.take_along_axis(both, order, axis=-1)
    twin = ids[:, 1:] == ids[:, :-1]  # [D, U - 1] slot i + 1 repeats slot i; ids are distinct within p and within q
    target = _merge(mx.take_along_axis(mx.concatenate([p, mx.zeros_like(q)], axis=-1), order, axis=-1), twin)
    draft = _merge(mx.take_along_axis(mx.concatenate([mx.zeros_like(p), q], axis=-1), order, axis=-1), twin)
    here = ids == drafted[:, None]
    mass = mx.sum(mx.where(here, draft, 0), axis=-1)
    return Aligned(ids, target, draft, mx.argmax(here, axis=-1).astype(mx.int32), mass)


def _merge(values: mx.array, twin: mx.array) -> mx.array:
    """Moves the value of a repeated slot onto the slot before it. One of the two is 0, so the sum is the value."""
    moved = mx.pad(mx.where(twin, values[:, 1:], 0), [(0, 0), (0, 1)])
    stays = mx.pad(~twin, [(0, 0), (1, 0)], constant_values=True)
    return mx.where(stays, values, 0) + moved


def divergence(p: mx.array, q: mx.array) -> mx.array:
    """[D] total variation distance D_TV(p, q) = sum max(0, p - q) of rows [D, U] on shared slots."""
    return mx.sum(mx.maximum(p - q, 0), axis=-1)
