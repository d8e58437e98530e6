"""Randomness is a function of the seed: repeatable, independent of the law, the lanes and how the prompt is read."""

import mlx.core as mx
import numpy as np
import pytest
from scipy import stats

from mtrun.runtime.decode import decoder as decoder_module
from mtrun.runtime.decode.keys import Keys, Use
from support.laws import LAWS
from support.table_parts import table_parts, tables
from support.tiny_parts import ScriptedDrafter, decoder, events, install, request, tiny_parts, tokens

FILTERS = ({}, {"top_k": 4, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.8, "min_p": 0.05}, {"temperature": 0.0})
PROMPT = (0, 3)


def small(law=None):
    target, draft = tables(9, seed=2)
    return table_parts(target, draft, law, mx.array([0, 1, 2, 4, 6, 7], dtype=mx.int32))


def reply(parts, depth=3, length=30, prompt=PROMPT, chunk=64, **sampling):
    return tokens(events(decoder(parts, depth, chunk=chunk), request(prompt, max_tokens=length, **sampling)))


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_equal_seeds_repeat_and_others_do_not(law):
    parts = small(law)
    first = reply(parts, seed=11)
    assert reply(parts, seed=11) == first
    assert len({tuple(reply(parts, seed=seed)) for seed in range(4)}) == 4


def test_requests_without_a_seed_differ_and_their_reported_seed_repeats_them():
    parts = small()
    made = [events(decoder(parts, 3), request(PROMPT, seed=None, max_tokens=30)) for _ in range(3)]
    assert len({tuple(tokens(each)) for each in made}) == 3
    assert reply(parts, seed=made[0][-1].seed) == tokens(made[0])


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_how_the_prompt_is_chunked_changes_nothing(tmp_path, chunk):
    parts = tiny_parts(tmp_path, vocab=12, hidden=16, layers=1, tied=False)
    prompt = [i % 12 for i in range(20)]
    assert reply(parts, prompt=prompt, chunk=chunk) == reply(parts, prompt=prompt)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_the_exact_lanes_change_no_token(law):
    """Row by row against batched, scattered against compact, each alone and both, under every filter."""
    for sampling in FILTERS:
        parts = small(law)
        install(parts, "frspec")
        stock = reply(parts, depth=4, **sampling)
        batched = install(parts, "batched_target_rows")["batched_target_rows"]
        assert reply(parts, depth=4, **sampling) == stock
        install(parts, "draft_prescatter")
        assert reply(parts, depth=4, **sampling) == stock
        batched.undo()
        assert reply(parts, depth=4, **sampling) == stock


def test_block_verification_repeats_with_its_seed_and_under_the_batched_verifier():
    parts = small()
    install(parts, "block_verify")
    first = reply(parts, depth=4)
    assert reply(parts, depth=4) == first
    install(parts, "batched_target_rows")
    assert reply(parts, depth=4) == first


class RecordingKeys(Keys):
    """Writes down every uniform that the loop asked for."""

    log: list

    def uniforms(self, use, cycle, count):
        values = super().uniforms(use, cycle, count)
        RecordingKeys.log.append((use, cycle, tuple(values)))
        return values


@pytest.fixture
def recorded(monkeypatch):
    RecordingKeys.log = []
    monkeypatch.setattr(decoder_module, "Keys", RecordingKeys)
    return RecordingKeys


def test_every_cycle_draws_the_same_uniforms_under_every_law(recorded):
    logs = {}
    for name, law in LAWS.items():
        recorded.log = []
        session = decoder(small(law), 3).session(request(PROMPT), 3)
        session.prefill(list(PROMPT), None)
        for _ in range(6):
            session.step(3)
        logs[name] = recorded.log
    assert all(log == logs["exact"] for log in logs.values())
    uses = [(use, len(values)) for use, cycle, values in logs["exact"] if cycle == 4]
    assert uses == [(Use.DRAFT, 3), (Use.COIN, 3), (Use.RESIDUAL, 1), (Use.BONUS, 1)]
    assert len({(use, cycle) for use, cycle, _ in logs["exact"]}) == len(logs["exact"])


def test_the_uniforms_of_the_loop_are_uniform_and_independent(recorded):
    parts = small()
    install(parts, "batched_target_rows")
    session = decoder(parts, 8, context=10**6).session(request(PROMPT, seed=3), 8)
    session.drafter = ScriptedDrafter(lambda text, depth: [1] * depth)
    session.prefill(list(PROMPT), None)
    used = []
    verify = session.verify
    session.verify = lambda cycle: used.append(np.array(cycle.coins)) or verify(cycle)
    for _ in range(1250):
        session.step(8)
    coins, drafts = (
        np.array([v for use, _, v in recorded.log if use == which and v]) for which in (Use.COIN, Use.DRAFT)
    )
    assert coins.shape == drafts.shape == (1250, 8)
    assert np.array_equal(coins, np.array(used))
    assert all(stats.kstest(values.ravel(), "uniform").pvalue > 1e-6 for values in (coins, drafts))
    pairs = [(drafts, coins), (coins[1:], coins[:-1]), (drafts[1:], drafts[:-1]), (drafts[1:], coins[:-1])]
    assert all(abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(a.size) for a, b in pairs)


def test_neighbouring_seeds_and_uses_share_no_uniform():
    values = [tuple(Keys(seed).uniforms(use, cycle, 4)) for seed in range(20) for use in Use for cycle in range(20)]
    assert len({value for four in values for value in four}) == 4 * len(values)
    assert max(max(four) for four in values) < 1.0
