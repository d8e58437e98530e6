"""What a window's figures are, by hand."""

from typing import Any

import pytest

from mtrun.runtime.measure.figures import (
    CONTENTION,
    contended,
    contention,
    decode_speed,
    ms_per_cycle,
    place_means,
    tokens_per_cycle,
)


def window(seed: int = 0, prompt: int = 0, seconds: float = 2.0, **changed: Any) -> dict[str, Any]:
    """Nine tokens: one of prefill, eight of four forwards that kept four drafts."""
    counts = {"verify_calls": 4, "accepted": 4}
    return {
        "seed": seed,
        "prompt": prompt,
        "ids": list(range(9)),
        "decode_seconds": seconds,
        "decode_cpu_seconds": 2.0,
        "counts": counts,
        **changed,
    }


def test_the_figures_of_a_window() -> None:
    assert decode_speed(window()) == 4.0, "the first token belongs to prefill"
    assert tokens_per_cycle(window()) == 2.0
    assert ms_per_cycle(window()) == 500.0
    assert contention(window(seconds=3.0)) == 1.5


def test_plain_decoding_makes_one_token_a_forward_and_no_forward_has_no_figure() -> None:
    plain = window(counts={"verify_calls": 8, "accepted": 0})
    assert (tokens_per_cycle(plain), ms_per_cycle(plain)) == (1.0, 250.0)
    none = window(counts={"verify_calls": 0, "accepted": 0})
    assert (tokens_per_cycle(none), ms_per_cycle(none)) == (None, None)


def test_speed_is_read_off_the_tokens_and_the_time_and_not_off_a_figure_beside_them() -> None:
    assert decode_speed(window(decode_tok_s=99.0)) == 4.0


def test_times_too_short_for_the_clock_divide_by_no_zero() -> None:
    assert decode_speed(window(seconds=0.0)) > 1e9
    assert contention(window(decode_cpu_seconds=0.0)) > CONTENTION


def test_a_window_is_contended_above_the_limit_and_not_at_it() -> None:
    at = window(seconds=CONTENTION, decode_cpu_seconds=1.0)
    above = window(seconds=CONTENTION + 1e-9, decode_cpu_seconds=1.0)
    assert contended([window(), at, above, above]) == 2


def test_rounds_are_averaged_within_a_seed_and_prompt_in_any_order() -> None:
    rounds = [window(1, 2, 1.0), window(0, 2, 4.0), window(1, 2, 2.0), window(1, 3, 8.0)]
    found = place_means(rounds, decode_speed)
    assert found == {(1, 2): pytest.approx(6.0), (0, 2): 2.0, (1, 3): 1.0}
    assert place_means(rounds[::-1], decode_speed) == found


def test_windows_without_the_figure_have_no_place() -> None:
    windows = [window(0, 0, nll=None), window(0, 1, nll=1.5), window(0, 1, nll=None)]
    assert place_means(windows, lambda one: one["nll"]) == {(0, 1): 1.5}
