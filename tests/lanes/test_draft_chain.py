"""A row is held to the filter up to tokens at its edge: a proof must not hang on which side of a cut a tie falls."""

from typing import Any

import numpy as np
import pytest

from mtrun.kernels.rows import RowFilter, filter_rows
from mtrun.lanes.draft_chain import TOLERANCE, _error

WEIGHTS = np.array([0.4, 0.3, 0.2, 0.05, 0.0301, 0.03, 0.0, 0.0]) / 1.0101  # the last two are outside the subset


def rows_of(how: RowFilter) -> np.ndarray:
    with np.errstate(divide="ignore"):
        logits = np.log(WEIGHTS)[None].astype(np.float32)
    rows = filter_rows(logits, how)
    out = np.zeros(len(WEIGHTS))
    out[slice(None) if rows.ids is None else rows.ids[0]] = rows.probs[0]
    return out


def row(*kept: int) -> np.ndarray:
    out = np.zeros(len(WEIGHTS))
    out[list(kept)] = WEIGHTS[list(kept)]
    return out / out.sum()


BY_K, BY_P = RowFilter(top_k=5), RowFilter(top_p=0.9 / 1.0101 + 5e-4)
BY_MIN_P = RowFilter(min_p=0.05 / 0.4 + 1e-5)


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        (BY_K, (0, 1, 2, 3, 4)),
        (BY_K, (0, 1, 2, 3, 5)),
        (BY_P, (0, 1, 2)),
        (BY_P, (0, 1, 2, 3)),
        (BY_MIN_P, (0, 1, 2)),
        (BY_MIN_P, (0, 1, 2, 3)),
        (RowFilter(0.0), (0,)),
    ],
)
def test_either_side_of_a_cut_is_right_for_a_token_that_stands_on_it(how: RowFilter, kept: tuple[int, ...]) -> None:
    error = _error(row(*kept), rows_of, how)
    assert error is not None
    assert error < TOLERANCE


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        (BY_K, (0, 1, 2)),
        (BY_K, (0, 1, 2, 4, 5)),
        (BY_P, (0, 1)),
        (BY_P, (0, 1, 2, 4)),
        (BY_MIN_P, (0, 1)),
        (BY_MIN_P, (0, 1, 2, 3, 4)),
        (RowFilter(), (0, 1, 2, 3, 4)),
        (RowFilter(0.0), (1,)),
        (RowFilter(0.0), (0, 1)),
    ],
)
def test_tokens_away_from_the_cut_may_not_change_sides(how: RowFilter, kept: tuple[int, ...]) -> None:
    assert _error(row(*kept), rows_of, how) is None


@pytest.mark.parametrize("change", [lambda row: row * 1.01, lambda row: row**1.1, lambda row: row * np.nan])
def test_probabilities_of_what_is_kept_are_held_to_the_step(change: Any) -> None:
    error = _error(change(row(0, 1, 2)), rows_of, BY_P)
    assert error is None or not error <= TOLERANCE
