"""Teacher-forced training sees exactly what step-by-step decoding with a cache sees."""

import mlx.core as mx
import numpy as np
import pytest

from mtrun.runtime.forge.hostmath import HostMath, MlxMath, StepMath
from mtrun.runtime.forge.rollout import chain
from support.tiny_forge import Bench


def decoded(head, hidden: mx.array, embedded: mx.array, start: int, depth: int) -> list[mx.array]:
    """The states of the chain at `start` as the drafter makes them: committed pairs first, then one step a depth."""
    caches = head.new_caches()
    state = head.forward(hidden[:, : start + 1], embedded[:, : start + 1], caches, 0)[:, -1:]
    states = [state]
    for step in range(1, depth):
        state = head.forward(state, embedded[:, start + step : start + step + 1], caches, step)
        states.append(state)
    return states


def everywhere(batch: int, length: int) -> mx.array:
    return mx.broadcast_to(mx.arange(length)[None], (batch, length))


@pytest.mark.parametrize("math", [MlxMath(), HostMath(1), HostMath(2)], ids=lambda math: math.name)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_chain_is_cached_decoding_step_by_step(bench: Bench, depth: int, math: StepMath) -> None:
    head = bench.opened.new_head(3)
    rng = np.random.default_rng(0)
    hidden, embedded = (mx.array(rng.normal(size=(1, 12, 32)).astype(np.float32)) for _ in range(2))
    states = chain(head, hidden, embedded, everywhere(1, 12), depth, math)
    assert len(states) == depth
    for start in range(12 - depth + 1):
        for d, state in enumerate(decoded(head, hidden, embedded, start, depth)):
            assert np.allclose(np.array(states[d][0, start]), np.array(state[0, 0]), atol=2e-5), (start, d + 1)


def test_chosen_starts_have_the_states_that_they_have_among_all(bench: Bench) -> None:
    head = bench.opened.new_head(3)
    rng = np.random.default_rng(2)
    hidden, embedded = (mx.array(rng.normal(size=(2, 9, 32)).astype(np.float32)) for _ in range(2))
    starts = np.array([[6, 0, 3], [2, 5, 2]], dtype=np.int32)
    whole = chain(head, hidden, embedded, everywhere(2, 9), 3, MlxMath())
    some = chain(head, hidden, embedded, mx.array(starts), 3, MlxMath())
    assert np.allclose(np.array(some[0]), np.array(whole[0]), atol=2e-5)
    for d in (1, 2):
        expected = np.take_along_axis(np.array(whole[d]), starts[..., None], axis=1)
        assert np.allclose(np.array(some[d]), expected, atol=2e-5), d


def test_padding_changes_no_state_before_it(bench: Bench) -> None:
    head = bench.opened.new_head(3)
    rng = np.random.default_rng(1)
    hidden, embedded = (mx.array(rng.normal(size=(2, 9, 32)).astype(np.float32)) for _ in range(2))
    whole = chain(head, hidden, embedded, everywhere(2, 9), 3, MlxMath())
    short = chain(head, hidden[:, :6], embedded[:, :6], everywhere(2, 6), 3, MlxMath())
    for d in range(3):
        assert np.allclose(np.array(whole[d][:, : 6 - d]), np.array(short[d][:, : 6 - d]), atol=2e-5)
