"""Copied drafts: when they apply, that the law stands, that they are counted apart, and that the proof can fail."""

from dataclasses import replace

import numpy as np
import pytest

from mtrun.kernels.draft import Drafted
from mtrun.kernels.rows import RowFilter, Rows
from mtrun.lanes.catalogue import load
from mtrun.lanes.contract import Decision
from mtrun.runtime.acceptance.exact import ExactLaw
from mtrun.runtime.acceptance.law import Judgement
from support.chi_square import DELTA, p_value
from support.host_parts import host_parts
from support.table_parts import enumerate_joint, reference_row, table_parts, tables
from support.tiny_parts import decoder, events, finished, install, request, tiny_evidence, tiny_parts, tokens

(LANE,) = load(["context_copy"]).values()
NO_HEAD = Decision(False, "absent", "The pack has no head.")
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 3


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return tiny_parts(tmp_path_factory.mktemp("copy"), vocab=24, hidden=16, seed=1, tied=False, draft_vocab=16)


@pytest.fixture(scope="module")
def sliding(tmp_path_factory):
    return tiny_parts(tmp_path_factory.mktemp("slide"), vocab=24, hidden=16, seed=1, tied=False, sliding_window=16)


@pytest.fixture
def parts(built):
    return replace(built)


def headless(parts):
    changed = replace(parts)
    changed.head = None
    return changed


def reply(parts, depth=3, **asked):
    made = events(decoder(parts, depth), request(PROMPT, **asked))
    return tokens(made), finished(made)


@pytest.mark.parametrize(
    ("code", "evidence"),
    [
        ("nothing_drafted", {"depth": 0}),
        ("law", {"law": "cascade"}),
        ("law", {"law": "typical"}),
        ("law", {"law": "synthetic"}),
    ],
)
def test_it_declines_with_its_reason(parts, code, evidence):
    decision = LANE.supports(tiny_evidence(parts, **evidence))
    assert (decision.ok, decision.code) == (False, code)
    assert decision.reason.endswith(".")


@pytest.mark.parametrize("head", [Decision(True, "present", "It fits."), NO_HEAD])
def test_it_applies_with_and_without_a_head(parts, head):
    assert LANE.supports(tiny_evidence(parts, head=head)).code == "supported"
    assert not LANE.auto


def test_undo_restores_the_very_objects(parts):
    before = dict(vars(parts))
    first, second = install(parts, "context_copy"), install(parts, "context_copy")
    assert [name for name, value in vars(parts).items() if value is not before[name]] == ["drafting"]
    for each in (second, first):
        each["context_copy"].undo()
    assert all(value is before[name] for name, value in vars(parts).items())


@pytest.mark.parametrize("lanes", [(), ("block_verify",), ("frspec", "draft_prescatter", "batched_target_rows")])
@pytest.mark.parametrize("depth", [1, 3, 5])
@pytest.mark.parametrize("face", [replace, host_parts, headless], ids=["device", "host", "headless"])
def test_the_proof_of_the_sound_lane_holds(built, lanes, depth, face):
    parts = face(built)
    install(parts, *lanes)
    proof = LANE.prove(
        install(parts, "context_copy", depth=depth)["context_copy"], parts, tiny_evidence(parts, depth=depth)
    )
    assert proof.ok, proof.reason
    assert proof.figures["copied"] > 0


class Broken:
    """The lane's drafter with one fault in what it drafts."""

    def __init__(self, inner, fault):
        self.inner, self.fault = inner, fault

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def draft(self, depth, how, adjust, uniforms):
        made = self.inner.draft(depth, how, adjust, uniforms)
        return made if made.rows is None else self.fault(made)


def half_a_mass(made):
    return Drafted(made.tokens, Rows(made.rows.ids, made.rows.probs * 0.5), made.source)


def other_tokens(made):
    return Drafted(made.tokens + 1, Rows(made.rows.ids + 1, made.rows.probs), made.source)


def row_of_another_token(made):
    return Drafted(made.tokens, Rows(made.rows.ids + 1, made.rows.probs), made.source)


def counted_as_the_heads(made):
    return Drafted(made.tokens, made.rows)


def one_short(made):
    return Drafted(made.tokens[:-1], Rows(made.rows.ids[:-1], made.rows.probs[:-1]), made.source)


@pytest.mark.parametrize(
    "fault",
    [half_a_mass, other_tokens, row_of_another_token, counted_as_the_heads, one_short],
    ids=lambda f: f.__name__,
)
def test_a_sabotaged_drafter_fails_the_proof(parts, fault):
    installed = install(parts, "context_copy")["context_copy"]
    sound = parts.drafting

    class Sabotaged:
        max_depth = sound.max_depth

        def around(self, drafter):
            return Broken(sound.around(drafter), fault)

    parts.drafting = Sabotaged()
    assert not LANE.prove(installed, parts, tiny_evidence(parts)).ok


class BrokenLaw(ExactLaw):
    """Keeps every point mass: what cascade opt and tokenv1 do."""

    def judge(self, block):
        right = super().judge(block)
        return Judgement(right.kept * 0 + block.coins.shape[0], right.deferred, right.replacement)


class KeepsDraftsMass(ExactLaw):
    def judge(self, block):
        right = super().judge(block)
        return Judgement(right.kept, right.deferred, block.p)


@pytest.mark.parametrize("law", [BrokenLaw(), KeepsDraftsMass()])
def test_a_law_that_is_wrong_under_point_masses_fails_the_proof(parts, law):
    installed = install(parts, "context_copy")["context_copy"]
    parts.law = law
    assert not LANE.prove(installed, parts, tiny_evidence(parts)).ok


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [(), ("block_verify", "batched_target_rows")], ids=["stock", "block"])
@pytest.mark.parametrize(("head", "xp"), [(True, None), (False, None), (True, np)], ids=["head", "headless", "host"])
def test_the_targets_joint_is_emitted(lanes, head, xp):
    target, draft = tables(3, seed=4)
    parts = table_parts(target, draft, **({} if xp is None else {"xp": xp}))
    parts = parts if head else headless(parts)
    install(parts, *lanes, "context_copy", depth=2)
    prompt, length = (0, 1, 2, 0, 1, 0, 2, 2, 0, 0), 4
    loop = decoder(parts, 2, context=len(prompt) + length)
    ends = [events(loop, request(prompt, max_tokens=length, seed=seed)) for seed in range(2500)]
    law = enumerate_joint(lambda prefix: reference_row(target[prefix[-1]], RowFilter()), prompt, length, 3)
    assert p_value([tuple(tokens(each)) for each in ends], law) > DELTA
    copied = sum(finished(each).counts.copied for each in ends)
    assert copied > 2500
    assert (sum(finished(each).counts.drafted for each in ends) > copied) == head


@pytest.mark.parametrize("face", [replace, headless, host_parts], ids=["device", "headless", "host"])
@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("lanes", [(), ("block_verify", "batched_target_rows")], ids=["stock", "lanes"])
def test_greedy_replies_are_those_of_plain_decoding(built, face, depth, lanes):
    plain, _ = reply(face(built), 0, temperature=0.0, max_tokens=120)
    parts = face(built)
    install(parts, *lanes, "context_copy", depth=depth)
    made, end = reply(parts, depth, temperature=0.0, max_tokens=120)
    assert made == plain
    assert end.counts.copied_accepted > 0
    assert end.counts.identities() == []
    assert end.law.reason.startswith("temperature 0")


@pytest.mark.parametrize("penalty", [{"repetition_penalty": 1.3}, {"frequency_penalty": 0.4, "logit_bias": {4: 2.0}}])
def test_penalties_see_copied_drafts(built, penalty):
    plain, _ = reply(replace(built), 0, temperature=0.0, max_tokens=60, **penalty)
    parts = replace(built)
    install(parts, "context_copy")
    made, end = reply(parts, temperature=0.0, max_tokens=60, **penalty)
    assert made == plain
    assert end.counts.copied > 0


@pytest.mark.parametrize("model", ["built", "sliding"])
def test_after_copies_trunk_and_head_stand_where_a_run_that_never_drafted_stands(request, model):
    import mlx.core as mx

    parts = replace(request.getfixturevalue(model))
    install(parts, "context_copy")
    loop = decoder(parts, 3)
    session = loop.session(_request(temperature=1.0), 3)
    list(loop._prefill(session, tuple(PROMPT)))
    ids, sources = [*PROMPT, session.primary], []
    for _ in range(40):
        made = session.step(3)
        sources.append(session.drafted_by)
        ids += made
        fed = mx.array([ids[:-1]], dtype=mx.int32)
        out = parts.trunk.forward(fed, parts.trunk.new_caches(), "last")
        assert session.length == len(ids) - 1
    assert {"copied", "head"} <= set(sources)
    hidden = parts.trunk.forward(fed, parts.trunk.new_caches(), "none").hidden
    head = session.drafter.inner
    state = head._read_pending()[:, -1:]
    embedded = parts.trunk.embed(mx.array([ids[1:]], dtype=mx.int32))
    fresh = parts.head.forward(hidden, embedded, parts.head.new_caches(), 0)[:, -1:]
    assert float(mx.max(mx.abs(state - fresh))) < 1e-4
    after = parts.trunk.forward(mx.array([ids[-1:]], dtype=mx.int32), session.caches, "last").logits
    whole = parts.trunk.forward(mx.array([ids], dtype=mx.int32), parts.trunk.new_caches(), "last").logits
    assert float(mx.max(mx.abs(after - whole))) < 1e-4
    assert out.logits is not None


def _request(**sampling):
    return request(PROMPT, **sampling)


def test_copies_are_counted_apart_and_engage_the_lane(parts):
    installed = install(parts, "context_copy")["context_copy"]
    _, end = reply(parts, max_tokens=60)
    counts = end.counts
    assert 0 < counts.copied < counts.drafted
    assert counts.identities() == []
    assert 0 < installed.latch.count <= counts.cycles
    assert sum((i + 1) * n for i, n in enumerate(counts.cycles_by_depth)) == counts.drafted
    installed.latch.reset()
    reply(parts, max_tokens=20, depth=0)
    assert installed.latch.count == 0


def test_a_pack_without_a_head_drafts_where_the_text_repeats_and_nowhere_else(built):
    parts = headless(built)
    assert decoder(parts, 3).depth_of(request(PROMPT)) == 0
    install(parts, "context_copy")
    assert decoder(parts, 3).depth_of(request(PROMPT)) == 3
    _, end = reply(parts, max_tokens=60)
    assert end.counts.drafted == end.counts.copied > 0
    assert end.counts.cycles < end.counts.verify_calls
    assert end.law.engaged


def test_a_seed_repeats(parts):
    install(parts, "context_copy")
    assert reply(parts, seed=4)[0] == reply(parts, seed=4)[0] != reply(parts, seed=5)[0]
