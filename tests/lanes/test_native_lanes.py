"""The lanes of the native library: when they apply, that they leave no trace, and what engages them.

`test_native_proofs.py` holds the faults that their proofs have to catch.
"""

from dataclasses import replace
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.native.llama import NativeTrunk
from mtrun.lanes import cpu_layer
from mtrun.lanes.catalogue import LANE_NAMES, load
from mtrun.lanes.contract import Decision, Exactness
from mtrun.runtime.verdicts import State
from support.native_parts import NAMES, armed, install_native, native_evidence, needs_library, prove
from support.tiny_parts import decoder, events, request, tokens

pytestmark = needs_library
LANES = load(NAMES)
SEAMS = {
    "cpu_layer": {"trunk", "head", "cache_factory", "draft_scorer", "draft_ids"},
    "cpu_int8": set(),  # these two change how the native trunk works inside
    "cpu_head_q4": set(),
    "draft_chain": {"draft_chain"},
    "row_kernel": {"target_rows"},
    "judge_kernel": {"verify"},
}
NO_HEAD = Decision(False, "absent", "The pack has no head.")
PROMPT = [1, 7, 30, 4, 9]
DEPTH = 3


def standing_on(name):
    """Lanes that stand in place before this one, in the order of a start-up."""
    return (*LANES[name].requires, "frspec", "draft_prescatter") if name == "draft_chain" else LANES[name].requires


def test_this_file_knows_every_lane_of_the_native_library():
    assert LANES.keys() == SEAMS.keys()


@pytest.mark.parametrize(
    ("name", "code", "evidence", "pack"),
    [
        ("cpu_layer", "device", {"device": "metal"}, {}),
        ("cpu_layer", "not_built", {"native_library": None, "native_isa": None}, {}),
        ("cpu_layer", "not_usable", {"native_isa": None}, {}),
        ("cpu_layer", "layer", {}, {"native": None}),
        ("cpu_layer", "layer", {}, {"native": Decision(False, "layer", "Its projections have biases.")}),
        ("row_kernel", "not_built", {"native_library": None, "native_isa": None}, {}),
        ("row_kernel", "not_usable", {"native_isa": None}, {}),
        ("cpu_int8", "dense", {}, {"quantized_bits": None}),
        ("cpu_head_q4", "width", {}, {"hidden_size": 48}),
        ("draft_chain", "no_head", {}, {"head": NO_HEAD}),
        ("draft_chain", "nothing_drafted", {"depth": 0}, {}),
        ("judge_kernel", "law", {"law": "synthetic"}, {}),
    ],
)
def test_a_lane_declines_with_its_reason(parts, name, code, evidence, pack):
    seen = replace(native_evidence(parts, **{"quantized_bits": 4, **pack}), **evidence)
    decision = LANES[name].supports(seen)
    assert (decision.ok, decision.code) == (False, code)
    assert decision.reason.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_a_lane_applies_to_a_pack_that_has_it_all(parts, name):
    decision = LANES[name].supports(native_evidence(parts, quantized_bits=4))
    assert (decision.ok, decision.code) == (True, "supported")
    assert decision.reason.endswith(".")


def test_only_lossy_lanes_wait_to_be_asked():
    assert {name for name, lane in LANES.items() if not lane.auto} == {"cpu_int8", "cpu_head_q4"}
    assert all((lane.exactness is Exactness.LOSSY) != lane.auto for lane in LANES.values())


def inside(parts):
    """What lanes may change within the parts, by name."""
    trunk = parts.trunk
    if not isinstance(trunk, NativeTrunk):
        return {}
    return {
        "activation": trunk.engine.activation,
        "hit": trunk.hit,
        "projection": trunk.projection,
        "scorer": parts.head.scorer,
    }


@pytest.mark.parametrize("name", NAMES)
def test_undo_restores_the_very_objects_also_after_two_installs(parts, name):
    """`cpu_layer` reads the pack's own weights, which a native trunk has not: it goes in once."""
    install_native(parts, *standing_on(name))
    before, kept = dict(vars(parts)), inside(parts)
    rows = np.array(parts.trunk.forward(parts.trunk.xp.array([PROMPT]), parts.cache_factory(), "all").logits)
    installed = [install_native(parts, name)[name] for _ in range(1 if name == "cpu_layer" else 2)]
    assert {seam for seam, value in vars(parts).items() if value is not before[seam]} == SEAMS[name]
    assert SEAMS[name] or inside(parts) != kept
    for each in reversed(installed):
        each.undo()
    assert all(value is before[seam] for seam, value in vars(parts).items())
    assert inside(parts) == kept
    again = parts.trunk.forward(parts.trunk.xp.array([PROMPT]), parts.cache_factory(), "all").logits
    assert np.array_equal(np.array(again), rows)


def test_what_a_lane_serves_for_is_in_the_catalogue(parts):
    installed = install_native(parts, "cpu_layer", "frspec", "draft_chain", "judge_kernel")
    assert installed["cpu_layer"].serves_for == ("cpu_blas",)
    assert installed["draft_chain"].serves_for == ("frspec", "draft_prescatter")
    assert installed["judge_kernel"].serves_for == ("batched_target_rows", "block_verify")
    assert all(set(each.serves_for) <= set(LANE_NAMES) for each in installed.values())


@pytest.mark.parametrize("depth", [1, 3, 5])
@pytest.mark.parametrize("name", ["cpu_layer", "row_kernel", "draft_chain", "judge_kernel"])
def test_the_proof_of_a_sound_lane_holds(either, name, depth):
    for first in (standing_on(name), LANES[name].requires):  # drafts from the subset, and from the whole vocabulary
        parts = replace(either)
        install_native(parts, *first)
        proof = prove(parts, name, install_native(parts, name)[name], depth=depth)
        assert proof.ok, proof.reason
        assert proof.reason.endswith(".")
        assert proof.figures


@pytest.mark.parametrize("name", ["cpu_int8", "cpu_head_q4"])
def test_the_proof_of_a_lossy_lane_says_how_far_rows_move(parts, name):
    install_native(parts, "cpu_layer")
    proof = prove(parts, name, install_native(parts, name)[name])
    assert proof.ok, proof.reason
    assert 0 < proof.figures["mean_total_variation"] < 0.25


def test_the_rows_of_mlx_arrays_are_proved_too(parts):
    installed = install_native(parts, "row_kernel")["row_kernel"]
    assert prove(parts, "row_kernel", installed).ok
    rows = installed.hot(mx.zeros((1, 384)), SimpleNamespace(greedy=True, temperature=0.0, top_p=1, min_p=0, top_k=0))
    assert isinstance(rows.ids, mx.array)


def test_a_pack_without_a_head_is_served_natively(either):
    bare = replace(either, head=None, draft_ids=None)
    installed = install_native(bare, "cpu_layer", head=NO_HEAD)["cpu_layer"]
    proof = prove(bare, "cpu_layer", installed, head=NO_HEAD)
    assert proof.ok
    assert "head_relative_error" not in proof.figures
    assert bare.head is None


class FakeEngine:
    def __init__(self):
        self.threads = 1

    def set_threads(self, threads):
        self.threads = threads


@pytest.mark.parametrize(
    ("seconds", "chosen", "gain"),
    [
        ({1: 2.0, 2: 1.0}, 2, 2.0),
        ({1: 2.0, 2: 1.9}, 1, 2.0 / 1.9),
        ({1: 1.0, 2: 4.0}, 1, 0.25),
        ({1: 1.1, 2: 1.0}, 2, 1.1),
    ],
)
def test_more_threads_serve_only_where_they_are_faster(seconds, chosen, gain):
    engine, widths = FakeEngine(), []

    def step(rows):
        widths.append(rows)
        return seconds[engine.threads]

    assert cpu_layer.settle_threads(engine, step, 2) == {"threads": chosen, "threads_gain": pytest.approx(gain)}
    assert engine.threads == chosen
    assert len(widths) == 2 * cpu_layer.ROUNDS


def test_one_outlier_does_not_decide_the_threads():
    engine, calls = FakeEngine(), []

    def step(rows):
        calls.append(engine.threads)
        return 50.0 if len(calls) == 4 else {1: 2.0, 2: 1.0}[engine.threads]

    assert cpu_layer.settle_threads(engine, step, 2)["threads"] == 2


def test_one_thread_is_not_timed():
    def step(rows):
        raise AssertionError("there is nothing to choose")

    assert cpu_layer.settle_threads(FakeEngine(), step, 1) == {"threads": 1.0}


@pytest.mark.parametrize(("gain", "threads"), [(0.0, 2), (float("inf"), 1)])
def test_the_audit_holds_the_threads_that_serve(parts, gain, threads, monkeypatch):
    monkeypatch.setattr(cpu_layer, "GAIN", gain)
    registry, _ = armed(parts, threads=2)
    verdict = registry.verdict("cpu_layer")
    assert verdict.proof.figures["threads"] == parts.trunk.engine.threads == threads
    assert verdict.proof.figures["threads_gain"] > 0
    assert f"on {threads} of 2 threads" in verdict.reason
    assert all(verdict.proof.figures[f"ms_{rows}_rows"] > 0 for rows in (1, 2, DEPTH + 1))
    assert verdict.proof.figures["weights_mb"] > 0


def test_lossy_lanes_stand_together_and_leave_in_turn(parts):
    before = inside(parts)
    registry, installation = armed(parts, {"cpu_int8": True, "cpu_head_q4": True}, quantized_bits=4)
    events(decoder(parts, DEPTH), request(PROMPT, max_tokens=8))
    counts = {name: registry.verdict(name).engaged_count for name in ("cpu_layer", "cpu_int8", "cpu_head_q4")}
    assert len(set(counts.values())) == 1
    assert counts["cpu_layer"] > 0
    installation.undo()
    assert inside(parts) == before
    assert not isinstance(parts.trunk, NativeTrunk)


def test_declined_armed_engaged(parts):
    registry, installation = armed(parts, quantized_bits=4)
    states = {verdict.lane: verdict.state for verdict in registry.verdicts()}
    assert all(states[name] is State.ARMED for name in NAMES if LANES[name].auto)
    assert all(registry.verdict(name).code == "not_auto" for name in ("cpu_int8", "cpu_head_q4"))
    events(decoder(parts, DEPTH), request(PROMPT, max_tokens=8, top_k=20))
    found = {verdict.lane: verdict for verdict in registry.verdicts()}
    assert all(found[name].state is State.ENGAGED for name in NAMES if LANES[name].auto)
    served_for = {"frspec": "draft_chain", "draft_prescatter": "draft_chain", "batched_target_rows": "judge_kernel"}
    served_for["block_verify"] = "judge_kernel"
    assert {name: found[name].served_by for name in found if found[name].served_by} == served_for
    for name, other in served_for.items():
        assert (found[name].state, found[name].engaged_count) == (State.ARMED, 0)
        assert found[name].reason.endswith(f"its work is done by {other}.")
    counts = {name: found[name].engaged_count for name in NAMES}
    installation.undo()
    events(decoder(parts, DEPTH), request(PROMPT, max_tokens=8, top_k=20))
    assert {name: registry.verdict(name).engaged_count for name in NAMES} == counts


def test_a_request_that_drafts_step_by_step_engages_the_lanes_that_were_served_for(parts):
    registry, _ = armed(parts)
    events(decoder(parts, DEPTH), request(PROMPT, max_tokens=8, frequency_penalty=0.5))
    found = {verdict.lane: verdict for verdict in registry.verdicts()}
    assert (found["draft_chain"].state, found["frspec"].served_by) == (State.ARMED, None)
    assert found["frspec"].state is found["draft_prescatter"].state is State.ENGAGED


def test_plain_decoding_engages_no_chain_and_says_nothing_of_served_lanes(parts):
    registry, _ = armed(parts)
    events(decoder(parts, DEPTH), request(PROMPT, max_tokens=8, depth=0))
    found = {verdict.lane: verdict for verdict in registry.verdicts()}
    assert found["cpu_layer"].state is State.ENGAGED
    assert (found["draft_chain"].state, found["frspec"].served_by) == (State.ARMED, None)


@pytest.mark.parametrize("name", [name for name in NAMES if LANES[name].auto])
def test_a_lane_that_the_operator_switched_off_is_out(parts, name):
    registry, _ = armed(parts, {name: False})
    events(decoder(parts, DEPTH), request(PROMPT, max_tokens=8, top_k=20))
    verdict = registry.verdict(name)
    assert (verdict.state, verdict.code) == (State.DECLINED, "operator")
    for other in ("draft_chain", "judge_kernel"):
        if name == "cpu_layer":
            assert registry.verdict(other).code == "requires"
        elif name != other:
            assert registry.verdict(other).state is State.ENGAGED


def test_an_undone_installation_says_what_it_said_before(parts):
    asked = request(PROMPT, max_tokens=16, top_k=20)
    stock = tokens(events(decoder(parts, DEPTH), asked))
    before = dict(vars(parts))
    _, installation = armed(parts)
    installation.undo()
    assert all(value is before[seam] for seam, value in vars(parts).items())
    assert tokens(events(decoder(parts, DEPTH), asked)) == stock
