"""Products of any trunk in the native library: when it applies, that it leaves no trace, that its proof can fail."""

from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from mtrun.kernels.native.library import NativeError
from mtrun.kernels.native.mlx_primitive import extension
from mtrun.kernels.native.mlx_primitive.matrices import PackedMatrix
from mtrun.kernels.native.mlx_primitive.modules import PackedEmbedding, PackedLinear
from mtrun.lanes.catalogue import load
from mtrun.lanes.contract import Decision, Exactness
from mtrun.lanes.cpu_qmm import LANE, TOLERANCE
from mtrun.runtime.arming import autoarm
from mtrun.runtime.verdicts import DecidedBy, State, VerdictRegistry
from support.tiny_parts import decoder, events, request, tiny_evidence, tiny_parts, tokens

needs_primitive = pytest.mark.skipif(extension.extension_path() is None, reason="the MLX primitive is not built")
ASKED = DecidedBy("command line", "lanes.cpu_qmm=true")
PROMPT = [1, 7, 30, 4, 9]
PACKS = {
    "tied": {},
    "untied": {"tied": False},
    "one key head": {"kv_heads": 1, "heads": 2},
    "narrow draft vocabulary": {"vocab": 330, "draft_vocab": 256},
}


@pytest.fixture(params=PACKS)
def parts(request, tmp_path):
    return tiny_parts(tmp_path, scale=1.5, **PACKS[request.param])


@pytest.fixture
def tied(tmp_path):
    return tiny_parts(tmp_path, scale=1.5)


def evidence_of(parts, **changes):
    return replace(tiny_evidence(parts), **{"mlx_primitive": "/lib/_primitive.so", **changes})


def installed_in(parts):
    return LANE.install(parts, evidence_of(parts))


def prove(parts, installed):
    return LANE.prove(installed, parts, evidence_of(parts))


def modules_of(parts):
    """name -> module, the trunk's and the head's."""
    models = {"trunk": parts.trunk.model, "head": parts.head}
    return {f"{place}.{name}": module for place, model in models.items() for name, module in model.named_modules()}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, "supported"),
        ({"device": "metal", "system": "Darwin"}, "device"),
        ({"mlx_primitive": None}, "not_built"),
    ],
)
def test_support_follows_from_the_evidence(tied, change, code):
    decision = LANE.supports(evidence_of(tied, **change))
    assert (decision.code, decision.ok) == (code, code == "supported")
    assert decision.reason.endswith(".")


def test_it_is_never_armed_by_itself_and_never_beside_the_whole_step(tied):
    assert (LANE.auto, LANE.exactness) == (False, Exactness.ROUNDING)
    lanes = load()
    pack = replace(evidence_of(tied).pack, native=Decision(True, "supported", "Every layer is known."))
    seen = evidence_of(tied, native_library="/lib/native.so", native_isa="generic", pack=pack)
    alone = autoarm.choose(lanes, seen)
    assert (alone[LANE.name].code, alone["cpu_layer"].ok) == ("not_auto", True)
    asked = autoarm.choose(lanes, seen, {LANE.name: (True, ASKED)})
    assert (asked[LANE.name].ok, asked["cpu_layer"].code) == (True, "excludes")


@needs_primitive
def test_declined_armed_engaged(tied):
    registry = VerdictRegistry({LANE.name: LANE})
    registry.decline(LANE.name, "not_auto", "Nobody asked.", ASKED)
    registry.start_serving()
    assert registry.verdict(LANE.name).state is State.DECLINED

    registry = VerdictRegistry({LANE.name: LANE})
    installed = installed_in(tied)
    proof = prove(tied, installed)
    assert proof.ok, proof.reason
    registry.arm(LANE.name, installed, proof, ASKED)
    registry.start_serving()
    assert registry.verdict(LANE.name).state is State.ARMED
    events(decoder(tied), request(PROMPT, max_tokens=3))
    verdict = registry.verdict(LANE.name)
    assert (verdict.state, verdict.engaged_count > 0) == (State.ENGAGED, True)
    installed.undo()
    events(decoder(tied), request(PROMPT, max_tokens=3))
    assert registry.verdict(LANE.name).engaged_count == verdict.engaged_count, "the stock modules do not count"


@needs_primitive
def test_the_proof_of_a_sound_lane_holds(parts):
    proof = prove(parts, installed_in(parts))
    assert proof.ok, proof.reason
    tied = "lm_head" not in parts.trunk.model
    assert proof.figures["modules"] == 7 * 2 + 1 + 8  # two layers, the lm_head, the head's layer and projection
    assert proof.figures["left_stock"] == 0
    assert 0 < proof.figures["max_relative_error"] < TOLERANCE
    head = parts.trunk.model.model.embed_tokens if tied else parts.trunk.model.lm_head
    assert isinstance(head, PackedEmbedding if tied else PackedLinear)


@needs_primitive
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_modules_are_packed_as_they_are(tied, bits):
    nn.quantize(tied.trunk.model, group_size=32, bits=bits)
    nn.quantize(tied.head, group_size=32, bits=bits)
    proof = prove(tied, installed_in(tied))
    assert proof.ok, proof.reason
    assert (proof.figures["modules"], proof.figures["left_stock"]) == (23, 0)


@needs_primitive
def test_a_trunk_that_tells_how_it_is_stored_is_packed_from_that(tied):
    """The trunk computes with dequantised weights; the triples, made wrong on purpose, must be what is multiplied."""
    name = "model.layers.0.mlp.gate_proj"
    gate = tied.trunk.model.model.layers[0].mlp.gate_proj
    triple = mx.quantize(gate.weight, group_size=32, bits=4)
    gate.weight = mx.dequantize(*triple, group_size=32, bits=4)
    arrays = dict(zip((f"{name}.{part}" for part in ("weight", "scales", "biases")), triple, strict=True))
    tied.trunk.stored = lambda: arrays
    installed = installed_in(tied)
    assert prove(tied, installed).ok
    installed.undo()
    arrays[f"{name}.scales"] = -arrays[f"{name}.scales"]
    assert not prove(tied, installed_in(tied)).ok


@needs_primitive
def test_what_cannot_be_packed_stays_as_it_is_and_is_told(tied):
    gate = tied.trunk.model.model.layers[1].mlp.gate_proj
    nn.quantize(
        tied.trunk.model, group_size=32, bits=2, class_predicate=lambda path, module: path.endswith("1.mlp.gate_proj")
    )
    two_bits = tied.trunk.model.model.layers[1].mlp.gate_proj
    assert two_bits is not gate
    installed = installed_in(tied)
    proof = prove(tied, installed)
    assert proof.ok
    assert (proof.figures["modules"], proof.figures["left_stock"]) == (22, 1)
    assert "2 bits" in installed.before.left["model.layers.1.mlp.gate_proj"]
    assert tied.trunk.model.model.layers[1].mlp.gate_proj is two_bits


@needs_primitive
def test_undo_restores_the_very_modules(parts):
    before = modules_of(parts)
    names = [name for name, _ in tree_flatten(parts.trunk.model.parameters())]
    first = installed_in(parts)
    assert [name for name, _ in tree_flatten(parts.trunk.model.parameters())] == names
    assert sum(module is not before[name] for name, module in modules_of(parts).items()) == 23
    first.undo()
    after = modules_of(parts)
    assert after.keys() == before.keys()
    assert all(module is before[name] for name, module in after.items())


@needs_primitive
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_greedy_text_is_the_stock_trunks(parts, depth):
    asked = request(PROMPT, max_tokens=60, temperature=0.0)
    stock = tokens(events(decoder(parts, depth), asked))
    installed = installed_in(parts)
    before = installed.hot()
    assert tokens(events(decoder(parts, depth), asked)) == stock
    assert installed.hot() - before >= 60 * 15 / (depth + 1)


@needs_primitive
def test_the_lm_heads_rows_are_still_to_be_had(parts):
    ids = mx.array([3, 1, 200])
    stock = parts.trunk.projection_rows(ids)
    installed_in(parts)
    assert mx.array_equal(parts.trunk.projection_rows(ids), stock)
    assert mx.array_equal(parts.trunk.embed(ids[None]), parts.trunk.model.model.embed_tokens.weight[ids][None])


def test_a_foreign_nanobind_or_another_mlx_stops_the_installation_and_changes_nothing(tied, monkeypatch):
    before = modules_of(tied)
    monkeypatch.setattr(extension, "extension_path", lambda: "/lib/_primitive.so")
    for fault, message in (
        ({"array_type": lambda: None}, "different versions of nanobind"),
        ({"built_against": lambda: "0.1.2"}, "built for mlx 0.1.2"),
    ):
        fields = {"built_against": lambda: mx.__version__, "array_type": lambda: mx.array, **fault}
        module = type("foreign", (), {name: staticmethod(value) for name, value in fields.items()})
        monkeypatch.setattr(extension, "import_module", lambda name, module=module: module)
        with pytest.raises(NativeError, match=message):
            installed_in(tied)
        assert all(module is before[name] for name, module in modules_of(tied).items())


def test_a_trunk_without_mlx_modules_is_refused(tied):
    evidence = evidence_of(tied)
    tied.trunk = object()
    with pytest.raises(NativeError, match="a object holds no MLX modules"):
        LANE.install(tied, evidence)


def outputs_shifted(right):
    return lambda self, x: mx.roll(right(self, x), 1, axis=-1)


def rows_past_the_fourth_wrong(right):
    def call(self, x):
        y = right(self, x)
        return mx.concatenate([y[..., :4, :], y[..., 4:, :] * 1.01], axis=-2) if x.shape[-2] > 4 else y

    return call


def one_matrix_wrong(right):
    return lambda self, x: right(self, x) * (1.05 if self.index == 5 else 1.0)


def last_of_the_heads_wrong(right):
    return lambda self, x: right(self, x) + (1.0 if self.index == 22 else 0.0)


def not_a_number(right):
    return lambda self, x: right(self, x) * (mx.nan if self.index == 14 else 1.0)


def one_matrix_not_native(right):
    return lambda self, x: mx.zeros((*x.shape[:-1], self.outputs)) if self.index == 3 else right(self, x)


FAULTS = (
    outputs_shifted,
    rows_past_the_fourth_wrong,
    one_matrix_wrong,
    last_of_the_heads_wrong,
    not_a_number,
    one_matrix_not_native,
)


@needs_primitive
@pytest.mark.parametrize("fault", FAULTS)
def test_a_sabotaged_lane_fails_its_proof(tied, monkeypatch, fault):
    installed = installed_in(tied)
    monkeypatch.setattr(PackedMatrix, "__call__", fault(PackedMatrix.__call__))
    proof = prove(tied, installed)
    assert not proof.ok
    assert proof.reason.endswith(".")


@needs_primitive
def test_a_module_that_stayed_stock_fails_the_proof_by_the_counter(tied):
    installed = installed_in(tied)
    swap = installed.before.swaps[2]
    swap.slot.holder[swap.slot.key] = swap.slot.module
    proof = prove(tied, installed)
    assert (proof.ok, "native products" in proof.reason) == (False, True)
