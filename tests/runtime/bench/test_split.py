"""Where a cycle's time goes, without changing what the cycle does."""

import time
from pathlib import Path

import numpy as np
import pytest

from mtrun.runtime.bench.split import PHASES, Clock, timed_sessions
from mtrun.runtime.requests import Chunk, Finished
from support.host_parts import host_parts
from support.tiny_parts import decoder, request, tiny_parts


def run(made, depth: int) -> tuple[list[int], Finished]:
    *events, last = made.run(request([5, 9, 3], max_tokens=24, depth=depth, ignore_eos=True), lambda: False)
    return [token for event in events if isinstance(event, Chunk) for token in event.token_ids], last


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("host", [False, True])
def test_a_watched_window_says_the_same_and_its_parts_add_up(tmp_path: Path, depth: int, host: bool) -> None:
    parts = tiny_parts(tmp_path)
    made = decoder(host_parts(parts) if host else parts)
    plain, _ = run(made, depth)
    before = dict(vars(made.parts))
    with timed_sessions(made) as clock:
        watched, last = run(made, depth)
    split = clock.split_ms(last.decode_seconds)
    assert watched == plain
    assert clock.synchronised is not host
    assert clock.cycles == last.counts.verify_calls
    assert (split["draft"] > 0) == (depth > 0)
    assert all(split[name] > 0 for name in ("verify", "rows", "judge", "commit", "rest"))
    assert sum(split.values()) * clock.cycles == pytest.approx(1e3 * last.decode_seconds)
    assert dict(vars(made.parts)) == before
    assert "session" not in vars(made)
    assert run(made, depth)[0] == plain


def test_a_failing_window_leaves_the_decoder_as_it_was(tmp_path: Path) -> None:
    made = decoder(tiny_parts(tmp_path))
    with pytest.raises(ZeroDivisionError), timed_sessions(made):
        raise ZeroDivisionError
    assert "session" not in vars(made)


def test_a_phase_inside_another_is_taken_out_of_it() -> None:
    clock = Clock()
    rows = clock.timed("rows", lambda: time.sleep(0.02), lambda found: None)
    judge = clock.timed("judge", lambda: (time.sleep(0.01), rows()), lambda found: None)
    judge()
    assert clock.seconds == dict.fromkeys(PHASES, 0.0), "outside of a cycle nothing counts"
    clock.step(lambda depth: judge())(3)
    assert clock.seconds["rows"] >= 0.02
    assert 0.01 <= clock.seconds["judge"] < clock.seconds["rows"] + clock.seconds["judge"] - 0.02
    assert clock.split_ms(1.0)["rest"] == pytest.approx(1e3 * (1.0 - np.sum(list(clock.seconds.values()))))
    assert Clock().split_ms(1.0) is None
