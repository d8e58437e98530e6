"""Draft rows: from the head's state to a filtered row and one drawn token, nothing synchronised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mtrun.kernels.arrays import Array, accumulator, namespace, pick, put
from mtrun.kernels.rows import RowFilter, Rows, draw, filter_rows


@dataclass(frozen=True)
class DraftLogits:
    """One draft position: logits [1, K] of the tokens ids [K] int32 ascending; ids None = the whole vocabulary."""

    logits: Array
    ids: Array | None


@dataclass(frozen=True)
class Drafted:
    """D draft tokens and the rows they were drawn from; tokens [D] int32, rows None when D = 0."""

    tokens: Any
    rows: Rows | None
    source: str = "head"  # "copied" where they repeat earlier text


DraftScorer = Callable[[Any], DraftLogits]  # head state [1, H] -> logits over the draft vocabulary
DraftRows = Callable[[DraftLogits, RowFilter], Rows]  # -> one row on token ids
# (state [H] of the last verified pair, the head's caches, D, filter, uniforms [D]) -> D drafts at once; leaves the
# chain's own D - 1 rows in the caches
DraftChain = Callable[[Any, list[Any], int, RowFilter, Any], Drafted]


def trimmed_scorer(rows: Any, ids: Array) -> DraftScorer:
    """Scores only the lm_head rows [K, H] of ids [K] int32 ascending: frequency-ranked drafting (arXiv 2502.14856)."""

    def score(state: Any) -> DraftLogits:
        return DraftLogits(state @ rows.T, ids)

    return score


def scattered_rows(vocab_size: int) -> DraftRows:
    """Builds the full-vocabulary row, tokens outside the draft vocabulary at -inf, and filters that."""

    def build(draft: DraftLogits, how: RowFilter) -> Rows:
        if draft.ids is None:
            return filter_rows(draft.logits, how)
        xp = namespace(draft.logits)
        full = xp.full((1, vocab_size), -xp.inf, dtype=draft.logits.dtype)
        return filter_rows(put(full, draft.ids[None], draft.logits), how)

    return build


def compact_rows(draft: DraftLogits, how: RowFilter) -> Rows:
    """Filters the draft vocabulary alone and names its slots by token id afterwards: the same row, never full width."""
    rows = filter_rows(draft.logits, how)
    if draft.ids is None:
        return rows
    known: Any = draft.ids
    ids = known[None] if rows.ids is None else known[rows.ids]
    return Rows(ids, rows.probs)


def draw_token(rows: Rows, uniform: Array) -> Any:
    """[R] int32 token ids drawn from R rows at uniforms [R]."""
    slots = draw(rows.probs, uniform)
    return slots if rows.ids is None else pick(rows.ids, slots)


def stack_rows(rows: list[Rows]) -> Rows:
    """R one-row `Rows` of one layout as one."""
    xp = namespace(rows[0].probs)
    ids = [row.ids for row in rows if row.ids is not None]
    return Rows(xp.concatenate(ids) if ids else None, xp.concatenate([row.probs for row in rows]))


def point_masses(tokens: Sequence[int], xp: Any, source: str) -> Drafted:
    """Tokens [D >= 1] that were not drawn but chosen: each has all the mass of its row. Arrays of module `xp`."""
    ids = xp.array(tokens, dtype=xp.int32)
    return Drafted(ids, Rows(ids[:, None], xp.ones((len(tokens), 1), dtype=accumulator(xp))), source)
