"""The lanes of the native library: when they apply, that they leave no trace, that each proof can fail, what engages."""

from dataclasses import replace
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.draft import DraftLogits
from mtrun.kernels.native import convert
from mtrun.kernels.native.llama import NativeHead, NativeTrunk
from mtrun.kernels.rows import Rows
from mtrun.lanes import cpu_layer
from mtrun.lanes.catalogue import LANE_NAMES, load
from mtrun.lanes.contract import Decision, Exactness
from mtrun.runtime.verdicts import State
from support.native_parts import NAMES, armed, install_native, native_evidence, needs_library, pack_parts
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


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    return pack_parts(tmp_path_factory.mktemp("dense"), vocab=384, hidden=64, draft_vocab=256, scale=1.5, tied=False)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized")
    return pack_parts(folder, vocab=384, hidden=64, draft_vocab=256, scale=1.5, quantized=True)


@pytest.fixture
def parts(quantized):
    return replace(quantized)


@pytest.fixture(params=["dense", "quantized"])
def either(request):
    return replace(request.getfixturevalue(request.param))


def prove(parts, name, installed, **seen):
    return LANES[name].prove(installed, parts, native_evidence(parts, **seen))


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
    seen = replace(native_evidence(parts, quantized_bits=4, **pack), **evidence)
    decision = LANES[name].supports(seen)
    assert (decision.ok, decision.code) == (False, code)
    assert decision.reason.endswith(".")
    assert decision.reason[0].isupper()


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
    install_native(parts, *standing_on(name))
    before, kept = dict(vars(parts)), inside(parts)
    rows = parts.trunk.forward(parts.trunk.xp.array([PROMPT]), parts.cache_factory(), "all").logits
    rows = np.array(rows)
    first, second = (install_native(parts, name)[name] for _ in range(2))
    assert {seam for seam, value in vars(parts).items() if value is not before[seam]} == SEAMS[name]
    assert SEAMS[name] or inside(parts) != kept
    second.undo()
    first.undo()
    assert all(value is before[seam] for seam, value in vars(parts).items())
    assert inside(parts) == kept
    again = parts.trunk.forward(parts.trunk.xp.array([PROMPT]), parts.cache_factory(), "all").logits
    assert np.array_equal(np.array(again), rows)


def test_what_a_lane_serves_for_is_in_the_catalogue(parts):
    installed = install_native(parts, "cpu_layer", "frspec", "draft_chain")
    assert installed["cpu_layer"].serves_for == ("cpu_blas",)
    assert installed["draft_chain"].serves_for == ("frspec", "draft_prescatter")
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


def double_epsilon(stock):
    return lambda args: replace(stock(args), eps=0.3)


FORWARD_FAULTS = {
    "rope of another layout": rebuilt(sizes_of=other_rope),
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
    "a large epsilon": rebuilt(sizes_of=double_epsilon),
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


def test_a_pack_without_a_head_is_served_natively(either):
    bare = replace(either, head=None, draft_ids=None)
    installed = install_native(bare, "cpu_layer", head=NO_HEAD)["cpu_layer"]
    proof = prove(bare, "cpu_layer", installed, head=NO_HEAD)
    assert proof.ok
    assert "head_relative_error" not in proof.figures
    assert bare.head is None


# Threads


class FakeEngine:
    def __init__(self):
        self.threads = 1

    def set_threads(self, threads):
        self.threads = threads


@pytest.mark.parametrize(
    ("seconds", "chosen", "gain"),
    [({1: 2.0, 2: 1.0}, 2, 2.0), ({1: 2.0, 2: 1.9}, 1, 2.0 / 1.9), ({1: 1.0, 2: 4.0}, 1, 0.25), ({1: 1.1, 2: 1.0}, 2, 1.1)],
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


# Lossy lanes


def does_nothing(parts, installed):
    parts.trunk.engine.set_activation(installed.before)


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
    from mtrun.kernels.native.engine import Entry

    install_native(parts, "cpu_layer")
    installed = install_native(parts, "cpu_head_q4")["cpu_head_q4"]
    trunk = parts.trunk
    turned = replace(trunk.lm_head, **{each: np.roll(getattr(trunk.lm_head, each), 1, axis=0) for each in
                                       ("weight", "scales", "biases")})  # fmt: skip
    trunk.use_projection(trunk.engine.add(Entry(turned, four_bits=True)))
    proof = prove(parts, "cpu_head_q4", installed)
    assert not proof.ok
    assert "more than" in proof.reason


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


def test_drafts_scored_in_8_bits_while_rows_are_in_4_are_seen_by_the_chains_proof(parts):
    """`draft_chain` compares the head's own scorer with the one that `frspec` took from the trunk."""
    installed = install_native(parts, "cpu_layer", "cpu_head_q4", "frspec", "draft_prescatter", "draft_chain")
    assert prove(parts, "draft_chain", installed["draft_chain"]).ok
    parts.head.scorer = installed["cpu_head_q4"].before.scorer
    assert not prove(parts, "draft_chain", installed["draft_chain"]).ok


# Chains


def drawn_from_another_row(hot, head):
    def chain(state, caches, depth, how, uniforms):
        made = hot(state, caches, depth, how, uniforms)
        ids = None if made.rows.ids is None else np.roll(made.rows.ids, 1, axis=0)
        return replace(made, rows=Rows(ids, np.roll(made.rows.probs, 1, axis=0)))

    return chain


def uniforms_in_another_order(hot, head):
    return lambda state, caches, depth, how, uniforms: hot(state, caches, depth, how, uniforms[::-1].copy())


def uniforms_ignored(hot, head):
    return lambda state, caches, depth, how, uniforms: hot(state, caches, depth, how, np.full(depth, 0.5))


def one_cache_row_more(hot, head):
    def chain(state, caches, depth, how, uniforms):
        made = hot(state, caches, depth, how, uniforms)
        head.forward(state[None, None], state[None, None], caches, depth)
        return made

    return chain


def one_cache_row_less(hot, head):
    def chain(state, caches, depth, how, uniforms):
        made = hot(state, caches, depth, how, uniforms)
        caches[0].trim(1)
        return made

    return chain


def verified_rows_overwritten(hot, head):
    def chain(state, caches, depth, how, uniforms):
        made = hot(state, caches, depth, how, uniforms)
        caches[0].trim(depth)
        for _ in range(depth):
            head.forward(state[None, None], state[None, None], caches, depth)
        return made

    return chain


def state_of_the_first_step_only(hot, head):
    """Every draft from the row of the first: the chain's own tokens are not fed back."""

    def chain(state, caches, depth, how, uniforms):
        parts = [hot(state, caches, 1, how, uniforms[i : i + 1]) for i in range(depth)]
        for _ in range(depth - 1):
            head.forward(state[None, None], state[None, None], caches, depth)
        ids = None if parts[0].rows.ids is None else np.concatenate([each.rows.ids for each in parts])
        rows = Rows(ids, np.concatenate([each.rows.probs for each in parts]))
        return replace(parts[0], tokens=np.concatenate([each.tokens for each in parts]), rows=rows)

    return chain


def temperature_dropped(hot, head):
    return lambda state, caches, depth, how, uniforms: hot(
        state, caches, depth, how if how.greedy else replace(how, temperature=1.0), uniforms
    )


def top_p_dropped(hot, head):
    return lambda state, caches, depth, how, uniforms: hot(state, caches, depth, replace(how, top_p=1.0), uniforms)


def min_p_dropped(hot, head):
    return lambda state, caches, depth, how, uniforms: hot(state, caches, depth, replace(how, min_p=0.0), uniforms)


def tokens_named_by_slot(hot, head):
    def chain(state, caches, depth, how, uniforms):
        made = hot(state, caches, depth, how, uniforms)
        return replace(made, tokens=(made.tokens + 1) % 384)

    return chain


CHAIN_FAULTS = (
    drawn_from_another_row,
    uniforms_in_another_order,
    uniforms_ignored,
    one_cache_row_more,
    one_cache_row_less,
    verified_rows_overwritten,
    state_of_the_first_step_only,
    temperature_dropped,
    top_p_dropped,
    min_p_dropped,
    tokens_named_by_slot,
)
HARMLESS_ALONE = {drawn_from_another_row, uniforms_in_another_order, state_of_the_first_step_only}  # at depth 1


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("fault", CHAIN_FAULTS)
def test_a_sabotaged_chain_fails_its_proof(either, fault, depth):
    if depth == 1 and fault in HARMLESS_ALONE:
        pytest.skip("a chain of one has one row, one uniform and nothing to feed back")
    install_native(either, "cpu_layer", "frspec", "draft_prescatter")
    installed = install_native(either, "draft_chain", depth=depth)["draft_chain"]
    proof = prove(either, "draft_chain", replace(installed, hot=fault(installed.hot, either.head)), depth=depth)
    assert not proof.ok
    assert proof.reason.endswith(".")


@pytest.mark.parametrize("ranked", [False, True])
def test_a_chain_over_another_vocabulary_than_the_scorer_fails_its_proof(either, ranked):
    install_native(either, "cpu_layer", *(["frspec", "draft_prescatter"] if ranked else []))
    installed = install_native(either, "draft_chain")["draft_chain"]
    assert prove(either, "draft_chain", installed).ok
    if ranked:
        either.draft_scorer = lambda state: DraftLogits(either.trunk.project(state), None)
    else:
        install_native(either, "frspec", "draft_prescatter")
    assert not prove(either, "draft_chain", installed).ok


# Row kernels


def ties_by_higher_id(hot):
    """Reads the row backwards, so that of equal logits the higher id comes first."""

    def rows(logits, how):
        made, last = hot(logits[:, ::-1], how), logits.shape[-1] - 1
        if made.ids is None:
            return Rows(None, made.probs[:, ::-1])
        return Rows((last - made.ids)[:, ::-1], made.probs[:, ::-1])

    return rows


def stride_ignored(hot):
    """Takes rows for contiguous that lie in wider ones."""

    def rows(logits, how):
        count, vocab = logits.shape
        flat = (logits if logits.base is None else logits.base).reshape(-1)
        return hot(flat[: count * vocab].reshape(count, vocab), how)

    return rows


def renormalised_wrongly(hot):
    return lambda logits, how: (lambda made: Rows(made.ids, made.probs * 0.999))(hot(logits, how))


def support_of_one_less(hot):
    return lambda logits, how: hot(logits, replace(how, top_k=how.top_k - 1) if how.top_k > 1 else how)


def widened(field, value):
    def fault(hot):
        return lambda logits, how: hot(logits, how if how.greedy else replace(how, **{field: value}))

    fault.__name__ = f"{field} of {value}"
    return fault


def nans(hot):
    return lambda logits, how: (lambda made: Rows(made.ids, made.probs * np.nan))(hot(logits, how))


ROW_FAULTS = (
    ties_by_higher_id,
    stride_ignored,
    renormalised_wrongly,
    support_of_one_less,
    widened("temperature", 1.0),
    widened("top_p", 1.0),
    widened("min_p", 0.0),
    widened("top_p", 0.94),
    nans,
)


@pytest.mark.parametrize("fault", ROW_FAULTS, ids=lambda fault: fault.__name__)
def test_a_sabotaged_row_kernel_fails_its_proof(parts, fault):
    install_native(parts, "cpu_layer")
    installed = install_native(parts, "row_kernel")["row_kernel"]
    proof = prove(parts, "row_kernel", replace(installed, hot=fault(installed.hot)))
    assert not proof.ok
    assert proof.reason.endswith(".")


# Verdicts


def test_declined_armed_engaged(parts):
    registry, installation = armed(parts, quantized_bits=4)
    states = {verdict.lane: verdict.state for verdict in registry.verdicts()}
    assert all(states[name] is State.ARMED for name in NAMES if LANES[name].auto)
    assert all(registry.verdict(name).code == "not_auto" for name in ("cpu_int8", "cpu_head_q4"))
    events(decoder(parts, DEPTH), request(PROMPT, max_tokens=8, top_k=20))
    found = {verdict.lane: verdict for verdict in registry.verdicts()}
    assert all(found[name].state is State.ENGAGED for name in NAMES if LANES[name].auto)
    for name in ("frspec", "draft_prescatter"):
        assert (found[name].state, found[name].served_by) == (State.ARMED, "draft_chain")
        assert found[name].engaged_count == 0
        assert found[name].reason.endswith("its work is done by draft_chain.")
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
