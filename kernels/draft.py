"""Draft rows: from the head's state to a filtered row and one drawn token, nothing synchronised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from mtrun.kernels.rows import RowFilter, Rows, draw, filter_rows


@dataclass(frozen=True)
class DraftLogits:
    """One draft position: logits [1, K] of the tokens ids [K] int32 ascending; ids None = the whole vocabulary."""

    logits: mx.array
    ids: mx.array | None


DraftScorer = Callable[[mx.array], DraftLogits]  # head state [1, H] -> logits over the draft vocabulary
DraftRows = Callable[[DraftLogits, RowFilter], Rows]  # -> one row on token ids


def trimmed_scorer(rows: mx.array, ids: mx.array) -> DraftScorer:
    """Scores only the lm_head rows [K, H] of ids [K] int32 ascending: frequency-ranked drafting (arXiv 2502.14856)."""

    def score(state: mx.array) -> DraftLogits:
        return DraftLogits(state @ rows.T, ids)

    return score


def scattered_rows(vocab_size: int) -> DraftRows:
    """Builds the full-vocabulary row, tokens outside the draft vocabulary at -inf, and filters that."""

    def build(draft: DraftLogits, how: RowFilter) -> Rows:
        if draft.ids is None:
            return filter_rows(draft.logits, how)
        full = mx.full((1, vocab_size), -mx.inf, dtype=draft.logits.dtype)
        return filter_rows(mx.put_along_axis(full, draft.ids[None], draft.logits, axis=-1), how)

    return build


def compact_rows(draft: DraftLogits, how: RowFilter) -> Rows:
    """Filters the draft vocabulary alone and names its slots by token id afterwards: the same row, never full width."""
    rows = filter_rows(draft.logits, how)
    if draft.ids is None:
        return rows
    ids = draft.ids[None] if rows.ids is None else draft.ids[rows.ids]
    return Rows(ids, rows.probs)


def draw_token(rows: Rows, uniform: mx.array) -> mx.array:
    """[R] int32 token ids drawn from R rows at uniforms [R]."""
    slots = draw(rows.probs, uniform)
    if rows.ids is None:
        return slots
    return mx.take_along_axis(rows.ids, slots[:, None], axis=-1)[:, 0]


def stack_rows(rows: list[Rows]) -> Rows:
    """R one-row `Rows` of one layout as one."""
    probs = mx.concatenate([row.probs for row in rows])
    ids = [row.ids for row in rows if row.ids is not None]
    return Rows(mx.concatenate(ids) if ids else None, probs)
