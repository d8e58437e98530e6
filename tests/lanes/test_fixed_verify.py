"""The compiled verify forward: when it applies, that it equals the eager one, and that its proof can fail."""

from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import pytest

from mtrun.kernels import fixed_forward
from mtrun.kernels.fixed_forward import CAPACITY, FixedCache, Slot
from mtrun.lanes.catalogue import load
from mtrun.lanes.contract import Installed
from mtrun.lanes.fixed_verify import LANE, SMALL
from mtrun.runtime.arming import autoarm
from mtrun.runtime.verdicts import DecidedBy, State, VerdictRegistry
from support.tiny_parts import (
    adversarial,
    decoder,
    events,
    finished,
    noisy,
    perfect,
    request,
    tiny_evidence,
    tiny_parts,
    tokens,
    with_drafter,
)

DEPTH = 3
PROMPT = [1, 7, 30, 4, 9]
ASKED = DecidedBy("command line", "lanes.fixed_verify=true")
PACKS = {
    "tied": {},
    "untied": {"tied": False},
    "one key head": {"kv_heads": 1, "heads": 2},
    "deeper": {"layers": 4},
}


@pytest.fixture(scope="module", params=PACKS)
def built(request, tmp_path_factory):
    return tiny_parts(tmp_path_factory.mktemp("fixed"), scale=1.5, **PACKS[request.param])


@pytest.fixture(scope="module")
def plain_built(tmp_path_factory):
    return tiny_parts(tmp_path_factory.mktemp("fixed"), scale=1.5)


@pytest.fixture
def parts(built):
    return replace(built)


@pytest.fixture
def tied(plain_built):
    return replace(plain_built)


def installed_in(parts, depth=DEPTH) -> Installed:
    return LANE.install(parts, tiny_evidence(parts, depth=depth))


def prove(parts, installed, depth=DEPTH):
    return LANE.prove(installed, parts, tiny_evidence(parts, depth=depth))


def registry_with(installed, proof):
    registry = VerdictRegistry({LANE.name: LANE})
    registry.arm(LANE.name, installed, proof, ASKED)
    registry.start_serving()
    return registry


def figures(registry, parts):
    (lane,) = registry.to_json(tiny_evidence(parts), {})["lanes"]
    return lane["proof"]["figures"]


@pytest.mark.parametrize(
    ("code", "pack"), [("family", {"family": "qwen3"}), ("cache_kind", {"trimmable_cache": False})]
)
def test_it_declines_with_its_reason(tied, code, pack):
    decision = LANE.supports(tiny_evidence(tied, **pack))
    assert (decision.ok, decision.code) == (False, code)
    assert decision.reason.endswith(".")


def test_it_applies_to_llama_and_says_that_the_cpu_gains_nothing(tied):
    evidence = tiny_evidence(tied)
    decision = LANE.supports(evidence)
    assert (decision.ok, decision.code) == (True, "supported")
    assert "no gain" in decision.reason
    assert "no gain" not in LANE.supports(replace(evidence, device="metal")).reason


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_nobody_gets_it_without_asking(tied, device):
    lanes = {**load(LANE.excludes), LANE.name: LANE}
    decision = autoarm.choose(lanes, replace(tiny_evidence(tied), device=device))[LANE.name]
    assert (decision.ok, decision.code) == (False, "not_auto")


def test_it_is_armed_by_its_proof_and_engaged_by_served_code(tied):
    installed = installed_in(tied)
    proof = prove(tied, installed)
    assert proof.ok
    registry = registry_with(installed, proof)
    assert registry.verdict(LANE.name).state is State.ARMED
    events(decoder(tied, DEPTH), request(PROMPT, max_tokens=8))
    assert registry.verdict(LANE.name).state is State.ENGAGED


def test_prompts_alone_do_not_engage_it(tied):
    installed = installed_in(tied)
    caches = tied.cache_factory()
    tied.trunk.forward(mx.array([PROMPT]), caches, "last")
    tied.trunk.forward(mx.array([PROMPT]), caches, "all")
    assert installed.latch.count == 0, "five rows are more than a cycle at depth 3 has"


def test_undo_restores_the_very_objects_also_after_two_installs(tied):
    before = dict(vars(tied))
    first, second = installed_in(tied), installed_in(tied)
    changed = {field for field, value in vars(tied).items() if value is not before[field]}
    assert changed == {"trunk", "cache_factory"}
    second.undo()
    first.undo()
    assert all(value is before[field] for field, value in vars(tied).items())


@pytest.mark.parametrize("depth", [0, 1, 3, 5])
def test_the_proof_of_the_sound_lane_holds(parts, depth):
    installed = installed_in(parts, depth)
    proof = prove(parts, installed, depth)
    assert proof.ok, proof.reason
    shapes = set(installed.latch.traces.by_shape)
    assert {rows for rows, capacity in shapes if capacity == CAPACITY} == set(range(1, depth + 2))
    assert proof.figures["traces"] == len(shapes)
    assert max(capacity for _, capacity in shapes if capacity != CAPACITY) > SMALL, "the probes saw a cache grow"


@pytest.mark.parametrize("drafter", [perfect, adversarial, noisy])
@pytest.mark.parametrize("depth", [1, DEPTH])
def test_greedy_text_is_the_stock_trunks(parts, depth, drafter):
    asked = request(PROMPT, max_tokens=60, temperature=0.0)
    reply = tokens(events(decoder(parts, depth), request(PROMPT, max_tokens=70, temperature=0.0, depth=0)))
    script = drafter(PROMPT, reply) if drafter is perfect else drafter(PROMPT, reply, parts.trunk.vocab_size)
    installed = installed_in(parts, depth)
    made = events(decoder(with_drafter(parts, script), depth), asked)
    assert tokens(made) == reply[:60]
    assert installed.latch.count == finished(made).counts.verify_calls
    assert finished(made).notes == (), "rejected rows are trimmed, not read again"
    assert tokens(events(decoder(parts, depth), replace(asked, depth=0))) == reply[:60]


def test_sampled_text_is_the_stock_trunks(parts):
    asked = request(PROMPT, max_tokens=60)
    stock = tokens(events(decoder(parts, DEPTH), asked))
    installed_in(parts)
    assert tokens(events(decoder(parts, DEPTH), asked)) == stock


@pytest.mark.parametrize("traditional", [False, True])
def test_the_rope_of_the_model_is_the_one_that_turns(tmp_path, traditional):
    parts = tiny_parts(tmp_path, scale=1.5)
    for layer in parts.trunk.model.model.layers:
        layer.self_attn.rope = nn.RoPE(8, traditional=traditional, base=10000.0)
    assert prove(parts, installed_in(parts)).ok
    row = parts.trunk.forward(mx.array([PROMPT]), parts.trunk.new_caches(), "last").logits
    for layer in parts.trunk.model.model.layers:
        layer.self_attn.rope = nn.RoPE(8, traditional=not traditional, base=10000.0)
    assert not mx.allclose(row, parts.trunk.forward(mx.array([PROMPT]), parts.trunk.new_caches(), "last").logits)


def test_growth_while_serving_is_counted_and_nothing_is_traced_twice(tied):
    installed = installed_in(tied)
    proof = prove(tied, installed)
    registry = registry_with(installed, proof)
    assert figures(registry, tied)["serving_traces"] == 0
    long = request(PROMPT, max_tokens=CAPACITY + 40, ignore_eos=True)
    events(decoder(tied, DEPTH), long)
    once = figures(registry, tied)
    assert 1 <= once["serving_traces"] <= DEPTH + 1
    assert once["serving_repeated_traces"] == 0
    events(decoder(tied, DEPTH), long)
    assert figures(registry, tied) == once, "a second request finds every graph"


def test_a_graph_that_is_traced_again_while_serving_shows_in_the_audit(tied):
    installed = installed_in(tied)
    registry = registry_with(installed, prove(tied, installed))
    tied.trunk.graph = mx.compile(
        fixed_forward.traced_step(tied.trunk.model.model, tied.trunk.project, tied.trunk.traces)
    )
    events(decoder(tied, DEPTH), request(PROMPT, max_tokens=8))
    assert figures(registry, tied)["serving_repeated_traces"] >= 1


def test_caches_double_and_keep_their_rows():
    cache = FixedCache(4)
    rows = mx.arange(11.0).reshape(1, 1, 11, 1)
    for start, end in ((0, 3), (3, 4), (4, 11)):
        keys, values = cache.update_and_fetch(rows[:, :, start:end], -rows[:, :, start:end])
    assert (cache.capacity, cache.offset) == (16, 11)
    assert mx.array_equal(keys, rows)
    assert mx.array_equal(values, -rows)
    assert cache.trim(5) == 5
    assert mx.array_equal(
        cache.update_and_fetch(rows[:, :, :1], rows[:, :, :1])[0][0, 0, :, 0], mx.array([0.0, 1, 2, 3, 4, 5, 0])
    )


def test_a_trunk_that_is_no_llama_is_refused_at_installation(tied):
    evidence = tiny_evidence(tied)
    tied.trunk = object()
    with pytest.raises(TypeError, match="object is not mlx-lm's llama"):
        LANE.install(tied, evidence)


def wrong_offset(monkeypatch, trunk):
    right = trunk.graph
    trunk.graph = lambda ids, offset, buffers: right(ids, offset + 1, buffers)


def stale_rows_not_masked(monkeypatch, trunk):
    monkeypatch.setattr(
        fixed_forward, "visible", lambda rows, capacity, offset: mx.ones((rows, capacity), dtype=mx.bool_)
    )


def a_row_sees_the_next(monkeypatch, trunk):
    right = fixed_forward.visible
    monkeypatch.setattr(fixed_forward, "visible", lambda rows, capacity, offset: right(rows, capacity, offset + 1))


def values_not_kept(monkeypatch, trunk):
    right = Slot.update_and_fetch

    def update(self, keys, values):
        before = self.values
        fetched = right(self, keys, values)
        self.values = before
        return fetched

    monkeypatch.setattr(Slot, "update_and_fetch", update)


def position_as_a_number(monkeypatch, trunk):
    """A number in a closure is a constant of the graph: right only where it was traced."""
    step = fixed_forward.traced_step(trunk.model.model, trunk.project, trunk.traces)
    graphs = {}

    def graph(ids, offset, buffers):
        at = int(offset.item())
        made = graphs.setdefault(at, mx.compile(lambda ids, buffers: step(ids, mx.array([at]), buffers)))
        return made(ids, buffers)

    trunk.graph = graph


def traced_at_each_step(monkeypatch, trunk):
    step = fixed_forward.traced_step(trunk.model.model, trunk.project, trunk.traces)
    trunk.graph = lambda *given: mx.compile(step)(*given)


def not_compiled(monkeypatch, trunk):
    trunk.graph = fixed_forward.traced_step(trunk.model.model, trunk.project, trunk.traces)


def not_a_number(monkeypatch, trunk):
    right = trunk.graph

    def graph(*given):
        hidden, logits, buffers = right(*given)
        return hidden, logits * mx.nan, buffers

    trunk.graph = graph


def growth_loses_rows(monkeypatch, trunk):
    monkeypatch.setattr(
        fixed_forward,
        "_padded",
        lambda buffer, missing: mx.zeros((*buffer.shape[:2], buffer.shape[2] + missing, buffer.shape[3])),
    )


def never_compiled(monkeypatch, trunk):
    trunk.rows = 0


FAULTS = (
    wrong_offset,
    stale_rows_not_masked,
    a_row_sees_the_next,
    values_not_kept,
    position_as_a_number,
    traced_at_each_step,
    not_compiled,
    not_a_number,
    growth_loses_rows,
    never_compiled,
)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("depth", [1, 3])
def test_a_sabotaged_lane_fails_its_proof(tied, monkeypatch, fault, depth):
    installed = installed_in(tied, depth)
    fault(monkeypatch, tied.trunk)
    proof = prove(tied, installed, depth)
    assert not proof.ok
    assert proof.reason.endswith(".")
