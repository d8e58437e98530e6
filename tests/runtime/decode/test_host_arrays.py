"""A trunk that speaks numpy decodes as one that speaks MLX: the same tokens and counters, and no MLX in the cycle.

Rows agree to the rounding of float32 exp, so a token could differ only where a uniform falls within 1e-6 of a boundary;
the seeds here meet none.
"""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.rows import RowFilter
from mtrun.lanes.catalogue import load
from mtrun.runtime.decode import rollback
from mtrun.runtime.decode.draft import Pairs
from mtrun.runtime.decode.penalties import Adjuster
from mtrun.runtime.decode.verify import uniforms
from mtrun.runtime.requests import Chunk, Sampling
from support.host_parts import HostCache, host_parts
from support.laws import LAWS
from support.table_parts import table_parts, tables
from support.tiny_parts import decoder, events, finished, install, request, tiny_evidence, tiny_parts, tokens

PROMPT = (3, 1, 4, 1, 5, 9)
SAMPLINGS = {
    "compact": {"top_k": 20, "top_p": 0.95},
    "dense": {},
    "dense top-p": {"top_p": 0.9, "temperature": 0.7},
    "min-p": {"min_p": 0.05, "top_k": 300},
    "penalties": {"top_k": 20, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    "bias": {"top_k": 20, "logit_bias": {2: 4.0, 7: -50.0}},
    "greedy": {"temperature": 0.0},
    "greedy with penalties": {"temperature": 0.0, "repetition_penalty": 1.2, "logit_bias": {5: 1.0}},
}
LANES = {
    "stock": (),
    "batched": ("batched_target_rows",),
    "ranked": ("frspec", "batched_target_rows"),
    "compact drafts": ("frspec", "draft_prescatter", "batched_target_rows"),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    return tiny_parts(folder, vocab=384, hidden=32, draft_vocab=256, layers=1, scale=0.6, seed=3)


def reply(parts, depth, lanes, length=16, chunk=4, **asked):
    install(parts, *lanes)
    made = events(decoder(parts, depth, chunk=chunk), request(PROMPT, max_tokens=length, **asked))
    return made, vars(finished(made).counts)


def same(device, host):
    """Tokens, text, counters and log-probabilities of two runs, the last two to rounding; returns the counters."""
    (made, counts), (others, other_counts) = device, host
    assert tokens(made) == tokens(others)
    assert finished(others).counts.identities() == []
    assert {**other_counts, "divergence": 0} == {**counts, "divergence": 0}
    assert other_counts["divergence"] == pytest.approx(counts["divergence"], abs=1e-4)
    left, right = (
        [each for event in run if isinstance(event, Chunk) for each in event.logprobs] for run in (made, others)
    )
    for mine, theirs in zip(left, right, strict=True):
        assert theirs.logprob == pytest.approx(mine.logprob, abs=1e-4)
        assert [token for token, _ in theirs.top] == [token for token, _ in mine.top]
        assert [value for _, value in theirs.top] == pytest.approx([value for _, value in mine.top], abs=1e-4)
    return counts


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_llama_on_host_arrays_says_the_same(built, sampling, depth):
    for seed, (name, lanes) in enumerate(LANES.items()):
        runs = [
            reply(parts, depth, lanes, seed=seed, top_logprobs=3, **sampling)
            for parts in (replace(built), host_parts(built))
        ]
        counts = same(*runs)
        assert bool(counts["drafted"]) == bool(depth), name


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("lanes", [(), ("batched_target_rows",)], ids=["stock", "batched"])
def test_every_law_decides_the_same(law, lanes):
    target, draft = tables(40, seed=2)
    kept = 0
    for sampling in SAMPLINGS.values():
        runs = [reply(table_parts(target, draft, law, xp=xp), 3, lanes, 40, **sampling) for xp in (mx, np)]
        kept += same(*runs)["accepted"]
    assert kept > 60


@pytest.mark.parametrize(
    "lanes", [("block_verify",), ("block_verify", "batched_target_rows")], ids=["stock", "batched"]
)
def test_block_verification_decides_the_same(built, lanes):
    target, draft = tables(40, seed=2)
    for sampling in SAMPLINGS.values():
        same(*(reply(table_parts(target, draft, xp=xp), 3, lanes, 40, **sampling) for xp in (mx, np)))
        same(*(reply(parts, 3, lanes, **sampling) for parts in (replace(built), host_parts(built))))


@pytest.fixture
def no_mlx(monkeypatch):
    """Every function of mlx.core raises while a test runs."""

    def refuse(*arguments, **options):
        raise AssertionError("an MLX operation ran in a cycle of host arrays")

    for name, value in list(vars(mx).items()):
        if callable(value) and not isinstance(value, type):
            monkeypatch.setattr(mx, name, refuse)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_no_mlx_operation_runs_in_the_cycle(law, no_mlx):
    for lanes in ((), ("batched_target_rows",)):
        for sampling in SAMPLINGS.values():
            parts = table_parts(*tables(40, seed=2), law, xp=np)
            made, _ = reply(parts, 3, lanes, top_logprobs=2, **sampling)
            assert len(tokens(made)) == 16


def test_the_refusal_of_mlx_is_seen_on_mlx_arrays(no_mlx):
    with pytest.raises(AssertionError, match="MLX operation"):
        mx.zeros(1)


@pytest.mark.parametrize("name", ["frspec", "draft_prescatter", "block_verify", "batched_target_rows"])
@pytest.mark.parametrize("depth", [1, 3])
def test_lanes_are_proved_on_host_arrays(built, name, depth):
    parts = host_parts(built)
    seen = tiny_evidence(parts, depth=depth)
    lane = load([name])[name]
    installed = lane.install(parts, seen)
    proof = lane.prove(installed, parts, seen)
    assert proof.ok, proof.reason
    assert proof.figures


def test_the_probe_cycle_is_of_the_trunks_kind(built):
    how = RowFilter(1.0, 0.95, 20)
    host, device = host_parts(built).probe_cycle(3, how, 0), built.probe_cycle(3, how, 0)
    assert all(isinstance(each, np.ndarray) for each in (host.logits, host.drafts, host.coins, host.bonus_uniform))
    assert host.drafts.tolist() == device.drafts.tolist()
    assert np.array_equal(host.logits, np.array(device.logits))


def test_a_cache_that_says_it_trims_is_trimmed_and_one_that_does_not_is_saved(built):
    caches = host_parts(built).trunk.new_caches()
    assert all(isinstance(cache, HostCache) for cache in caches)
    assert rollback.mark(caches).saved == [None] * len(caches)

    class Silent:
        def __init__(self):
            self.rows = np.zeros(3)

    silent = Silent()
    mark = rollback.mark([silent])
    silent.rows[:] = 1
    step = rollback.plan([silent], mark, 3, 1)
    assert step.reforward
    assert "Silent does not roll back by trimming" in str(step.reason)
    rollback.apply([silent], mark, step)
    assert silent.rows.tolist() == [0, 0, 0]


@pytest.mark.parametrize("ids", [None, [1, 3, 4]])
def test_adjusted_rows_are_the_devices_bit_for_bit(ids):
    how = Sampling(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=-0.3, logit_bias={1: 2.5, 4: -1.0})
    adjust = Adjuster(how, [0, 1], 6)
    adjust.commit([3, 3, 5])
    whole = np.random.default_rng(0).normal(0, 2, (3, 6)).astype(np.float32)
    logits = whole if ids is None else whole[:, ids]
    before = np.array([[-1, -1], [4, -1], [4, 3]], dtype=np.int32)
    host = adjust(logits, before, None if ids is None else np.array(ids, dtype=np.int32))
    device = adjust(mx.array(logits), mx.array(before), None if ids is None else mx.array(ids, dtype=mx.int32))
    assert host.dtype == np.float32
    assert not np.array_equal(host, logits)
    assert np.array_equal(host, np.array(device))
    everything = adjust(whole, before)
    assert np.array_equal(host, everything if ids is None else everything[:, ids])


@pytest.mark.parametrize("xp", [mx, np], ids=["mlx", "numpy"])
@pytest.mark.parametrize("penalty", [0.5, 0.0])
def test_each_draft_is_penalised_for_the_drafts_before_it(xp, penalty):
    seen = []

    class Watched(Adjuster):
        def __call__(self, logits, before, ids=None):
            seen.append(None if before is None else before.tolist())
            return super().__call__(logits, before, ids)

    drafter = table_parts(*tables(9), xp=xp).drafter()
    drafter.observe(Pairs(xp.zeros((1, 1, 9), dtype=xp.float32), [2]))
    adjust = Watched(Sampling(frequency_penalty=penalty), [2], 9)
    made = drafter.draft(3, RowFilter(0.0), adjust, uniforms(np.zeros(3), xp)).tokens.tolist()
    assert seen == ([None, [made[:1]], [made[:2]]] if penalty else [None] * 3)
