"""Every engine lane: when it applies, that it leaves no trace, that its proof can fail, and what engages it.

Lanes with conditions of their own (a native library, a policy of depths) have the same tests in files of their own.
"""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from mtrun.kernels.draft import DraftLogits
from mtrun.kernels.rows import Rows
from mtrun.lanes.block_verify import BlockJudgement
from mtrun.lanes.catalogue import LANE_NAMES, load
from mtrun.lanes.contract import Decision, Stage
from mtrun.runtime.acceptance.exact import ExactLaw
from mtrun.runtime.acceptance.table import build_law
from support.tiny_parts import decoder, events, install, request, tiny_evidence, tiny_parts, tokens

LANES = {name: lane for name, lane in load(LANE_NAMES).items() if lane.stage is Stage.ENGINE}
SEAM = {
    "frspec": "draft_scorer",
    "draft_prescatter": "draft_rows",
    "block_verify": "law",
    "kv_q8": "cache_factory",
    "batched_target_rows": "verify",
}
ELSEWHERE = {
    "cpu_layer": "test_native_lanes.py",  # these six need the native library and packs that it serves
    "cpu_int8": "test_native_lanes.py",
    "cpu_head_q4": "test_native_lanes.py",
    "draft_chain": "test_native_lanes.py",
    "row_kernel": "test_native_lanes.py",
    "judge_kernel": "test_native_lanes.py",
    "cpu_qmm": "test_cpu_qmm.py",  # replaces modules inside the trunk and the head, needs the MLX primitive
    "fixed_verify": "test_fixed_verify.py",  # counts the traces of a compiled graph
    "cost_depth": "test_cost_depth.py",  # keeps what it measured between requests
    "context_copy": "test_context_copy.py",  # drafts without a head, so nothing here would engage it
}
DEPTHS = (1, 3, 5)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lanes")
    return tiny_parts(folder, vocab=384, hidden=128, draft_vocab=256, layers=1, scale=1.5)


@pytest.fixture
def parts(built):
    return replace(built)


def prove(parts, name, installed, **evidence):
    return LANES[name].prove(installed, parts, tiny_evidence(parts, **evidence))


def test_this_file_knows_every_engine_lane():
    assert LANES.keys() == SEAM.keys() | ELSEWHERE.keys()
    assert not SEAM.keys() & ELSEWHERE.keys()
    for name, file in ELSEWHERE.items():
        assert name in (Path(__file__).parent / file).read_text(), f"{file} says nothing of {name}"


NO_HEAD = Decision(False, "absent", "The pack has no head.")


@pytest.mark.parametrize(
    ("name", "code", "evidence"),
    [
        ("frspec", "no_head", {"head": NO_HEAD}),
        ("frspec", "no_draft_vocabulary", {"draft_vocab_size": None}),
        ("frspec", "nothing_drafted", {"depth": 0}),
        ("draft_prescatter", "no_draft_vocabulary", {"draft_vocab_size": None}),
        ("block_verify", "nothing_drafted", {"head": NO_HEAD}),
        ("block_verify", "nothing_drafted", {"depth": 0}),
        ("block_verify", "law", {"law": "cascade"}),
        ("block_verify", "law", {"law": "typical"}),
        ("kv_q8", "cache_kind", {"trimmable_cache": False}),
        ("kv_q8", "head_dim", {"head_dim": 48}),
        ("kv_q8", "head_dim", {"head_dim": None}),
    ],
)
def test_a_lane_declines_with_its_reason(parts, name, code, evidence):
    decision = LANES[name].supports(tiny_evidence(parts, **evidence))
    assert (decision.ok, decision.code) == (False, code)
    assert decision.reason.endswith(".")


@pytest.mark.parametrize("name", SEAM)
def test_a_lane_applies_to_a_pack_that_has_it_all(parts, name):
    decision = LANES[name].supports(tiny_evidence(parts))
    assert (decision.ok, decision.code) == (True, "supported")


@pytest.mark.parametrize("name", SEAM)
def test_undo_restores_the_very_objects_also_after_two_installs(parts, name):
    before = dict(vars(parts))
    first, second = install(parts, name)[name], install(parts, name)[name]
    changed = [field for field, value in vars(parts).items() if value is not before[field]]
    assert changed == [SEAM[name]]
    second.undo()
    first.undo()
    assert all(value is before[field] for field, value in vars(parts).items())


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", SEAM)
def test_the_proof_of_a_sound_lane_holds_alone_and_beside_the_others(parts, name, depth):
    assert prove(parts, name, install(parts, name)[name], depth=depth).ok
    others = install(parts, *(other for other in SEAM if other != name))
    assert others
    proof = prove(parts, name, install(parts, name)[name], depth=depth)
    assert proof.ok
    assert proof.figures


@pytest.mark.parametrize("law", ["cascade", "typical", "typical-pi", "synthetic"])
def test_the_batched_verifier_is_proved_under_the_law_that_serves(parts, law):
    knobs = {"cascade": {"rule": "tokenv3", "alpha": 0.6}, "synthetic": {"rate": 0.5}}.get(law, {"threshold": 0.3})
    parts.law = build_law(law, **knobs)
    assert prove(parts, "batched_target_rows", install(parts, "batched_target_rows")["batched_target_rows"]).ok


def wrong_ids(hot):
    return lambda state: DraftLogits(hot(state).logits, (hot(state).ids + 1) % 384)


def shifted_rows(hot):
    return lambda state: DraftLogits(mx.roll(hot(state).logits, 1, axis=-1), hot(state).ids)


def one_wrong_row(hot):
    return lambda state: DraftLogits(hot(state).logits + (mx.arange(256) == 77) * 0.5, hot(state).ids)


def not_a_number(hot):
    return lambda state: DraftLogits(hot(state).logits * mx.nan, hot(state).ids)


def shifted_slots(hot):
    def rows(draft, how):
        made = hot(draft, how)
        return Rows((made.ids + 1) % 384, made.probs)

    return rows


def not_renormalised(hot):
    def rows(draft, how):
        made = hot(draft, how)
        return Rows(made.ids, made.probs * 0.999)

    return rows


def temperature_dropped(hot):
    return lambda draft, how: hot(draft, how if how.greedy else replace(how, temperature=1.0))


def top_p_dropped(hot):
    return lambda draft, how: hot(draft, replace(how, top_p=1.0))


def other_token(hot):
    def verify(cycle):
        made = hot(cycle)
        return replace(made, token=(made.token + 1) % 384)

    return verify


def one_keep_less(hot):
    def verify(cycle):
        made = hot(cycle)
        return replace(made, kept=max(made.kept - 1, 0))

    return verify


def wrong_row(hot):
    return lambda cycle: hot(replace(cycle, logits=mx.roll(cycle.logits, 1, axis=0)))


def bonus_from_the_row_before(hot):
    def verify(cycle):
        made = hot(cycle)
        if made.kept < cycle.depth:
            return made
        row = cycle.rows(cycle.depth - 1, cycle.depth)
        return replace(made, token=int(cycle.bonus(row).item()))

    return verify


def deferral_not_counted(hot):
    return lambda cycle: replace(hot(cycle), deferred=[False] * cycle.depth)


def divergence_not_measured(hot):
    return lambda cycle: replace(hot(cycle), divergence=[0.0] * cycle.depth)


def plain_caches(hot):
    return lambda: [KVCache() for _ in hot()]


def two_bits(hot):
    return lambda: [QuantizedKVCache(group_size=32, bits=2) for _ in hot()]


FAULTS = {
    "frspec": (wrong_ids, shifted_rows, one_wrong_row, not_a_number),
    "draft_prescatter": (shifted_slots, not_renormalised, temperature_dropped, top_p_dropped),
    "batched_target_rows": (
        other_token,
        one_keep_less,
        wrong_row,
        bonus_from_the_row_before,
        deferral_not_counted,
        divergence_not_measured,
    ),
    "kv_q8": (plain_caches, two_bits),
}


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name, faults in FAULTS.items() for fault in faults])
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_sabotaged_lane_fails_its_proof(parts, name, fault, depth):
    installed = install(parts, name, depth=depth)[name]
    broken = fault(installed.hot)
    setattr(parts, SEAM[name], broken)
    proof = prove(parts, name, replace(installed, hot=broken), depth=depth)
    assert not proof.ok
    assert proof.reason.endswith(".")


class BrokenBlock:
    """Block verification with one fault, behind the face of the lane's law."""

    def __init__(self, law, fault):
        self.law, self.fault = law, fault

    def __getattr__(self, name):
        return getattr(self.law, name)

    def judge(self, block):
        right = self.law.judge(block)
        depth = block.coins.shape[0]
        kept, replacement = right.kept, right.replacement
        match self.fault:
            case "keeps all":
                kept = mx.array(depth, dtype=mx.int32)
            case "one keep less":
                kept = mx.maximum(kept - 1, 0)
            case "coins reversed":
                kept = self.law.judge(replace(block, coins=block.coins[::-1])).kept
            case "the per-position rule":
                single = ExactLaw().judge(block)
                kept, replacement = single.kept, single.replacement
            case "the per-position residual":
                replacement = mx.maximum(block.p - block.q, 0)
            case "replacement from p":
                replacement = block.p
            case "not a number":
                replacement = replacement * mx.nan
        return BlockJudgement(kept, right.deferred, replacement)


ANYWHERE = ("keeps all", "one keep less", "replacement from p", "not a number")
BELOW = ("coins reversed", "the per-position rule", "the per-position residual")  # at depth 1 each is the rule itself


@pytest.mark.parametrize(
    ("depth", "fault"), [*((d, f) for d in DEPTHS for f in ANYWHERE), *((d, f) for d in DEPTHS[1:] for f in BELOW)]
)
def test_a_sabotaged_block_rule_fails_its_proof(parts, depth, fault):
    installed = install(parts, "block_verify", depth=depth)["block_verify"]
    broken = BrokenBlock(parts.law, fault)
    parts.law = broken
    assert not prove(parts, "block_verify", replace(installed, hot=broken.judge), depth=depth).ok


def test_latches_stand_still_until_served_code_runs(parts):
    installed = install(parts, *SEAM)
    for name, each in installed.items():
        prove(parts, name, each)
    for each in installed.values():  # a later lane's proof runs the code of earlier ones
        each.latch.reset()
    loop = decoder(parts, 3)
    assert [each.latch.count for each in installed.values()] == [0] * len(SEAM)
    events(loop, request([1, 2, 3], max_tokens=8))
    counts = {name: each.latch.count for name, each in installed.items()}
    assert all(counts.values())
    assert counts["kv_q8"] == 1
    assert all(each.latch.first is not None for each in installed.values())


def test_latches_of_drafting_lanes_stand_still_where_nothing_is_drafted(parts):
    installed = install(parts, *SEAM)
    events(decoder(parts, 3), request([1, 2, 3], max_tokens=8, depth=0))
    assert [installed[name].latch.count for name in ("frspec", "draft_prescatter", "block_verify")] == [0, 0, 0]
    assert installed["kv_q8"].latch.count == 1


def test_greedy_requests_are_not_judged_by_the_block_rule(parts):
    installed = install(parts, "block_verify")
    events(decoder(parts, 3), request([1, 2, 3], max_tokens=8, temperature=0.0))
    assert installed["block_verify"].latch.count == 0


def test_an_undone_lane_is_out_of_the_way(parts):
    stock = tokens(events(decoder(parts, 3), request([1, 2, 3], max_tokens=16)))
    installed = install(parts, *SEAM)
    for each in reversed(installed.values()):
        each.undo()
        each.latch.reset()
    assert tokens(events(decoder(parts, 3), request([1, 2, 3], max_tokens=16))) == stock
    assert not any(each.latch.count for each in installed.values())


def test_a_draft_never_leaves_the_draft_vocabulary(parts):
    install(parts, "frspec", "draft_prescatter")
    seen, verify = [], parts.verify
    parts.verify = lambda cycle: seen.extend(cycle.drafts.tolist()) or verify(cycle)
    events(decoder(parts, 3), request([1, 2, 3], max_tokens=30))
    assert len(seen) > 60
    assert set(seen) <= set(parts.draft_ids.tolist())
