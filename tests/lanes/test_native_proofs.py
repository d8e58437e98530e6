"""The proofs of native forwards (`cpu_layer` and its lossy lanes), each beside faults that it has to catch."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mtrun.kernels.native import convert
from mtrun.kernels.native.engine import Entry
from mtrun.kernels.native.llama import NativeHead
from mtrun.lanes import cpu_layer
from mtrun.lanes.catalogue import load
from support.native_parts import NAMES, install_native, needs_library, prove

pytestmark = needs_library
LANES = load(NAMES)


# Faults of native forwards. Each is given the installed trunk and head's own weights, or wraps a method.


def rebuilt(**faults):
    """Builds the native model with functions of `convert` replaced."""

    def apply(parts, patch):
        for name, fault in faults.items():
            patch.setattr(convert, name, fault(getattr(convert, name)))

    return apply


def changed_layer(change):
    """The stored parameters with one matrix of the last layer changed."""

    def wrap(stock):
        def layer(arrays, prefix, sizes):
            made = stock(arrays, prefix, sizes)
            return replace(made, matrices=change(dict(made.matrices))) if prefix == "model.layers.1." else made

        return layer

    return rebuilt(_layer=wrap)


def swapped(one, other):
    return changed_layer(lambda made: {**made, one: made[other], other: made[one]})


def shifted_outputs(made):
    stored = made["output"]
    return {**made, "output": replace(stored, weight=np.roll(stored.weight, 1, axis=0))}


def halved_scales(made):
    stored = made["down"]
    if stored.scales is None:
        return {**made, "down": replace(stored, weight=stored.weight / 2)}
    return {**made, "down": replace(stored, scales=stored.scales / 2)}


def other_rope(stock):
    return lambda args: replace(stock(args), rope_traditional=not stock(args).rope_traditional)


def table_of_the_models_rope(stock):
    """Beside `other_rope`: the table stays right, so that only the kernels pair the wrong values."""
    return lambda rope, width, traditional, positions: stock(rope, width, not traditional, positions)


def slower_rope(stock):
    def table(rope, width, traditional, positions):
        made = stock(rope, width, traditional, positions)
        places = np.arange(positions) // 2
        return type(made)(made.cosine[places], made.sine[places])

    return table


def plain_norm(*names):
    """The named norms weigh 1 everywhere."""

    def wrap(stock):
        return lambda arrays, name: np.ones_like(stock(arrays, name)) if name in names else stock(arrays, name)

    return rebuilt(vector=wrap)


def large_epsilon(stock):
    return lambda args: replace(stock(args), eps=0.3)


FORWARD_FAULTS = {
    "rope of another layout": rebuilt(sizes_of=other_rope, rope_table=table_of_the_models_rope),
    "rope at half speed": rebuilt(rope_table=slower_rope),
    "queries and outputs swapped": swapped("q", "output"),
    "gate and up swapped": swapped("gate", "up"),
    "keys and values swapped": swapped("k", "v"),
    "one matrix turned by an output": changed_layer(shifted_outputs),
    "one matrix at half its size": changed_layer(halved_scales),
    "a layer's norm without weights": plain_norm("model.layers.0.input_layernorm.weight"),
    "the last norm without weights": plain_norm("model.norm.weight"),
    "the head's last norm without weights": plain_norm("norm.weight"),
    "the head's input norms without weights": plain_norm("hidden_norm.weight", "embed_norm.weight"),
    "a large epsilon": rebuilt(sizes_of=large_epsilon),
}


@pytest.mark.parametrize("fault", FORWARD_FAULTS.values(), ids=FORWARD_FAULTS)
def test_a_wrongly_built_model_fails_its_proof(either, fault, monkeypatch):
    fault(either, monkeypatch)
    installed = install_native(either, "cpu_layer")["cpu_layer"]
    proof = prove(either, "cpu_layer", installed)
    assert not proof.ok
    assert proof.reason.endswith(".")


def rows_by_width(trunk, monkeypatch):
    forward = trunk.forward

    def wide(ids, caches, logits):
        out = forward(ids, caches, logits)
        return out if out.logits is None else out._replace(logits=out.logits * np.float32(1 + 1e-7 * ids.shape[1]))

    monkeypatch.setattr(trunk, "forward", wide)


def last_row_alone(trunk, monkeypatch):
    forward = trunk.forward

    def first(ids, caches, logits):
        out = forward(ids, caches, "all" if logits == "last" else logits)
        return out._replace(logits=out.logits[:1]) if logits == "last" else out

    monkeypatch.setattr(trunk, "forward", first)


def rows_by_thread(trunk, monkeypatch):
    forward = trunk.forward

    def torn(ids, caches, logits):
        out = forward(ids, caches, logits)
        if out.logits is not None and trunk.engine.threads > 1:
            out.logits[:, 5] += 1e-3
        return out

    monkeypatch.setattr(trunk, "forward", torn)


def stale_caches(trunk, monkeypatch):
    """Trimming is forgotten: later rows stand at later positions."""
    monkeypatch.setattr(trunk, "new_caches", lambda: [SimpleNamespace(handle=c.handle, keep=c, trim=lambda count: count)
                                                      for c in trunk.stack.new_caches()])  # fmt: skip


def unnormed_hidden(trunk, monkeypatch):
    forward = trunk.forward
    monkeypatch.setattr(
        trunk, "forward", lambda *a: (lambda out: out._replace(hidden=out.hidden * np.float32(1.1)))(forward(*a))
    )


def scaled_embedding(trunk, monkeypatch):
    embed = trunk.embed
    monkeypatch.setattr(trunk, "embed", lambda ids: embed(ids) * np.float32(1.1))


def draft_logits_of_the_neighbour(trunk, monkeypatch):
    project = trunk.project
    monkeypatch.setattr(trunk, "project", lambda hidden: np.roll(project(hidden), 1, axis=-1))


def wrong_lm_head_rows(trunk, monkeypatch):
    rows = trunk.projection_rows
    monkeypatch.setattr(trunk, "projection_rows", lambda ids: rows(ids + 1))


def not_a_number(trunk, monkeypatch):
    forward = trunk.forward

    def lost(ids, caches, logits):
        out = forward(ids, caches, logits)
        if out.logits is not None:
            out.logits[-1, 0] = np.nan
        return out

    monkeypatch.setattr(trunk, "forward", lost)


TRUNK_FAULTS = (
    rows_by_width,
    last_row_alone,
    rows_by_thread,
    stale_caches,
    unnormed_hidden,
    scaled_embedding,
    draft_logits_of_the_neighbour,
    wrong_lm_head_rows,
    not_a_number,
)


@pytest.mark.parametrize("fault", TRUNK_FAULTS)
def test_a_sabotaged_trunk_fails_its_proof(either, fault, monkeypatch):
    monkeypatch.setattr(cpu_layer, "GAIN", 0.0)  # however busy the machine, the proof goes on with both threads
    installed = install_native(either, "cpu_layer", threads=2)["cpu_layer"]
    fault(either.trunk, monkeypatch)
    proof = prove(either, "cpu_layer", installed, threads=2)
    assert not proof.ok
    assert proof.reason.endswith(".")


def head_forgets(head, monkeypatch):
    """Each call reads into a cache of its own, so that a second piece does not see the first."""
    forward = head.forward
    monkeypatch.setattr(
        head, "forward", lambda hidden, embedded, caches, depth: forward(hidden, embedded, head.new_caches(), depth)
    )


def head_swaps_its_inputs(head, monkeypatch):
    forward = head.forward
    monkeypatch.setattr(head, "forward", lambda hidden, embedded, *rest: forward(embedded, hidden, *rest))


@pytest.mark.parametrize("fault", [head_forgets, head_swaps_its_inputs])
def test_a_sabotaged_head_fails_its_proof(either, fault, monkeypatch):
    installed = install_native(either, "cpu_layer")["cpu_layer"]
    assert isinstance(either.head, NativeHead)
    fault(either.head, monkeypatch)
    assert not prove(either, "cpu_layer", installed).ok


# Lossy lanes


def test_an_8_bit_lane_that_does_nothing_fails_its_proof(parts):
    install_native(parts, "cpu_layer")
    installed = install_native(parts, "cpu_int8")["cpu_int8"]
    parts.trunk.engine.set_activation(installed.before)
    assert not prove(parts, "cpu_int8", installed).ok


def test_an_8_bit_lane_that_the_library_ignores_fails_its_proof(parts, monkeypatch):
    """The engine says 8 bits and its kernels go on as before."""
    install_native(parts, "cpu_layer")
    engine = parts.trunk.engine
    monkeypatch.setattr(engine, "set_activation", lambda activation: setattr(engine, "activation", activation))
    proof = prove(parts, "cpu_int8", install_native(parts, "cpu_int8")["cpu_int8"])
    assert not proof.ok
    assert "same bits" in proof.reason


def test_a_4_bit_lane_that_does_nothing_fails_its_proof(parts):
    install_native(parts, "cpu_layer")
    installed = install_native(parts, "cpu_head_q4")["cpu_head_q4"]
    parts.trunk.use_projection(installed.before.projection)
    assert not prove(parts, "cpu_head_q4", installed).ok


def test_a_4_bit_lane_with_another_matrix_fails_its_proof(parts):
    """An lm_head whose rows are not where they were: more than a lossy lane may move."""
    install_native(parts, "cpu_layer")
    installed = install_native(parts, "cpu_head_q4")["cpu_head_q4"]
    trunk = parts.trunk
    turned = replace(trunk.lm_head, **{each: np.roll(getattr(trunk.lm_head, each), 1, axis=0) for each in
                                       ("weight", "scales", "biases")})  # fmt: skip
    trunk.use_projection(trunk.engine.add(Entry(turned, four_bits=True)))
    proof = prove(parts, "cpu_head_q4", installed)
    assert not proof.ok
    assert "more than" in proof.reason
