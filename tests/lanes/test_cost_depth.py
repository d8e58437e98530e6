"""The chosen depth: when it applies, what it leaves alone, what repeats, and that the proof can fail."""

from dataclasses import replace

import pytest

from mtrun.kernels.depth_choice import WidthCosts
from mtrun.kernels.rows import RowFilter
from mtrun.lanes.catalogue import load
from mtrun.lanes.contract import Decision
from mtrun.lanes.cost_depth import LIVE_NOTE, ROUNDS, CostPolicy, measure
from mtrun.runtime.decode.depth import ConstantDepth
from support.chi_square import DELTA, p_value
from support.host_parts import host_parts
from support.table_parts import enumerate_joint, reference_row, table_parts, tables
from support.tiny_parts import (
    adversarial,
    decoder,
    events,
    finished,
    install,
    perfect,
    request,
    tiny_evidence,
    tiny_parts,
    tokens,
    with_drafter,
)

(LANE,) = load(["cost_depth"]).values()
PROMPT = [3, 1, 4, 1, 5]
CHEAP = WidthCosts(1.0, {"head": (1.2, 1.4, 1.6), "copied": (1.1, 1.2, 1.3)})
NO_HEAD = Decision(False, "absent", "The pack has no head.")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return tiny_parts(tmp_path_factory.mktemp("depth"), vocab=24, hidden=16, seed=1, tied=False, draft_vocab=16)


@pytest.fixture
def parts(built):
    return replace(built)


def armed(parts, costs=CHEAP, depth=3):
    """The lane with made-up costs, so that depths do not depend on the machine that runs the tests."""
    installed = install(parts, "cost_depth", depth=depth)["cost_depth"]
    installed.latch.costs, installed.latch.live = costs, False
    return installed


def follow_the_clock(installed):
    installed.latch.live = True


def reply(parts, depth=3, **asked):
    made = events(decoder(parts, depth), request(PROMPT, **asked))
    return tokens(made), finished(made)


@pytest.mark.parametrize(
    ("code", "evidence"),
    [
        ("no_head", {"head": NO_HEAD}),
        ("nothing_drafted", {"depth": 0}),
        ("law", {"law": "cascade"}),
        ("law", {"law": "typical-pi"}),
    ],
)
def test_it_declines_with_its_reason(parts, code, evidence):
    decision = LANE.supports(tiny_evidence(parts, **evidence))
    assert (decision.ok, decision.code) == (False, code)
    assert decision.reason.endswith(".")


def test_it_applies_where_there_is_a_head_and_a_depth(parts):
    assert LANE.supports(tiny_evidence(parts)).code == "supported"
    assert LANE.auto


def test_undo_restores_the_very_objects(parts):
    before = dict(vars(parts))
    first, second = install(parts, "cost_depth"), install(parts, "cost_depth")
    assert [name for name, value in vars(parts).items() if value is not before[name]] == ["depth_policy"]
    for each in (second, first):
        each["cost_depth"].undo()
    assert all(value is before[name] for name, value in vars(parts).items())


@pytest.mark.parametrize("depth", [1, 3, 5])
@pytest.mark.parametrize("face", [replace, host_parts], ids=["device", "host"])
@pytest.mark.parametrize(
    "lanes", [(), ("block_verify", "batched_target_rows", "context_copy")], ids=["alone", "beside"]
)
def test_the_proof_of_the_sound_lane_holds_with_its_timings(built, depth, face, lanes):
    parts = face(built)
    install(parts, *lanes, depth=depth)
    installed = install(parts, "cost_depth", depth=depth)["cost_depth"]
    proof = LANE.prove(installed, parts, tiny_evidence(parts, depth=depth))
    assert proof.ok, proof.reason
    names = {"plain_seconds", "read_seconds"} | {
        f"{s}_seconds_{d + 1}" for s in ("head", "copied") for d in range(depth)
    }
    assert proof.figures.keys() == names
    assert min(proof.figures.values()) >= 0


def test_every_width_is_timed_in_every_round(parts, monkeypatch):
    from mtrun.runtime.decode.session import Session

    steps, step = [], Session.step
    monkeypatch.setattr(Session, "step", lambda self, depth: steps.append(depth) or step(self, depth))
    measure(parts, 3)
    assert [steps.count(depth) for depth in range(4)] == [ROUNDS + 1, 3 * (ROUNDS + 1), *[2 * (ROUNDS + 1)] * 2]


class Faulty(CostPolicy):
    """The lane's policy with one fault."""

    fault = ""
    made = 0

    def choose(self, source, room):
        right = super().choose(source, room)
        if self.fault == "always deep":
            return room
        if self.fault == "always plain":
            return 0
        if self.fault == "never comes back":
            self.over = getattr(self, "over", False) or right == 0
            return 0 if self.over else right
        if self.fault == "other depths each time":
            return min(right, (Faulty.made + right) % (room + 1))
        return right

    def observe(self, spent):
        if self.fault == "believes all was kept":
            spent = replace(spent, kept=spent.drafted)
        super().observe(spent)


@pytest.mark.parametrize(
    "fault",
    ["always deep", "always plain", "never comes back", "other depths each time", "believes all was kept"],
)
@pytest.mark.parametrize("depth", [1, 3, 5])
def test_a_sabotaged_policy_fails_the_proof(parts, fault, depth):
    installed = install(parts, "cost_depth", depth=depth)["cost_depth"]
    sound = installed.hot

    def broken(depth, seeded):
        made = sound(depth, seeded)
        policy = Faulty(made.chooser, made.live, made.latch)
        policy.fault = fault
        Faulty.made += 1
        return policy

    parts.depth_policy = broken
    proof = LANE.prove(replace(installed, hot=broken), parts, tiny_evidence(parts, depth=depth))
    assert not proof.ok
    assert proof.reason.endswith(".")


def test_costs_that_are_no_times_fail_the_proof(parts):
    installed = install(parts, "cost_depth")["cost_depth"]
    installed.latch.figures["plain_seconds"] = float("nan")
    assert not LANE.prove(installed, parts, tiny_evidence(parts)).ok


@pytest.mark.parametrize("face", [replace, host_parts], ids=["device", "host"])
@pytest.mark.parametrize("seed", [None, 7])
def test_greedy_replies_are_those_of_plain_decoding(built, face, seed):
    plain, _ = reply(face(built), 0, temperature=0.0, max_tokens=130)
    for make in (perfect, lambda prompt, said: adversarial(prompt, said, 24)):
        parts = with_drafter(face(built), make(PROMPT, [*plain, *plain[:9]]))
        if face is host_parts:
            parts = face(built)
        armed(parts)
        made, end = reply(parts, temperature=0.0, max_tokens=120, seed=seed)
        assert made == plain[:120]
        assert end.counts.identities() == []


def test_good_drafts_are_drafted_deep_and_bad_ones_hardly_at_all(built):
    plain, _ = reply(replace(built), 0, temperature=0.0, max_tokens=310)
    good, bad = with_drafter(built, perfect(PROMPT, plain)), with_drafter(built, adversarial(PROMPT, plain, 24))
    for parts in (good, bad):
        armed(parts)
    counts = reply(good, temperature=0.0, max_tokens=300, seed=None)[1].counts
    assert counts.cycles_by_depth[2] > 0.8 * counts.verify_calls
    counts = reply(bad, temperature=0.0, max_tokens=300, seed=None)[1].counts
    assert counts.cycles < 0.25 * counts.verify_calls
    assert sum(counts.cycles_by_depth) == counts.cycles


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [(), ("context_copy", "block_verify")], ids=["head", "copies and blocks"])
def test_the_targets_joint_is_emitted_whatever_the_depths(lanes, monkeypatch):
    """Drafts so dear and so middling that every depth is chosen; triples at fixed places, given their first token."""
    target, draft = tables(3, seed=4)
    parts = table_parts(target, draft)
    install(parts, *lanes, depth=2)
    armed(parts, WidthCosts(1.0, {"head": (1.55, 1.9), "copied": (1.3, 1.6)}), depth=2)
    loop, length = decoder(parts, 2, context=90), 45
    seen, depths = [], set()
    for seed in range(350):
        # A request without a seed, so that depths are chosen; what it draws is fixed all the same.
        monkeypatch.setattr("mtrun.runtime.decode.decoder.fresh_seed", lambda seed=seed: seed)
        made = events(loop, request((0, 1, 2, 0, 1), max_tokens=length, seed=None))
        reply, counts = tokens(made), finished(made).counts
        seen += [tuple(reply[at : at + 3]) for at in range(0, length, 3)]
        depths |= {i + 1 for i, n in enumerate(counts.cycles_by_depth) if n}
        depths |= {0} if counts.cycles < counts.verify_calls else set()
    assert depths == {0, 1, 2}
    for first in range(3):
        rows = enumerate_joint(lambda prefix: reference_row(target[prefix[-1]], RowFilter()), (first,), 2, 3)
        mine = [each for each in seen if each[0] == first]
        assert len(mine) > 300
        assert p_value(mine, {(first, *path): mass for path, mass in rows.items()}) > DELTA


def test_a_seed_of_its_own_keeps_the_configured_depth(parts):
    stock, lane = replace(parts), parts
    installed = armed(lane, WidthCosts(1.0, {"head": (9.0, 9.0, 9.0), "copied": (9.0, 9.0, 9.0)}))
    follow_the_clock(installed)
    (said, end), (wanted, _) = reply(lane, max_tokens=100, seed=3), reply(stock, max_tokens=100, seed=3)
    assert said == wanted
    assert end.counts.cycles == end.counts.verify_calls
    assert LIVE_NOTE not in end.notes


def test_a_request_without_a_seed_follows_the_clock_and_says_so(parts, monkeypatch):
    follow_the_clock(armed(parts))
    seconds = {0: 1.0, 1: 30.0, 2: 60.0, 3: 90.0}
    clock = [0.0]
    monkeypatch.setattr("mtrun.runtime.decode.decoder.time.perf_counter", lambda: clock[0])
    from mtrun.runtime.decode.session import Session

    step = Session.step

    def slow(self, depth):
        clock[0] += seconds[depth]
        return step(self, depth)

    monkeypatch.setattr(Session, "step", slow)
    _, end = reply(parts, max_tokens=300, seed=None)
    assert LIVE_NOTE in end.notes
    assert end.counts.cycles < 0.3 * end.counts.verify_calls


def test_the_plain_path_runs_no_head(parts):
    """Drafts that cost more than they can bring: nothing of the head runs, and it can still come back."""
    installed = armed(parts, WidthCosts(1.0, {"head": (50.0,) * 3, "copied": (50.0,) * 3}))
    calls = []
    head = parts.head

    class Counting:
        max_depth = head.max_depth
        new_caches = head.new_caches

        def forward(self, *given):
            calls.append(given[0].shape[1])
            return head.forward(*given)

    parts.head = Counting()
    loop = decoder(parts, 3)
    session = loop.session(request(PROMPT), 3)
    policy = loop._policy(request(PROMPT, seed=None), 3)
    list(loop._prefill(session, tuple(PROMPT)))
    for _ in range(200):
        loop._cycle(session, policy, 3)
    assert calls == []
    assert len(session.drafter._pending) <= 130
    assert installed.latch.count == 200
    session.step(2)
    assert calls[0] == len(PROMPT) + 200  # every verified pair in one forward, then the chain
    assert session.counts.cycles_by_depth == [0, 1]


def test_latches_stand_still_where_nothing_is_drafted(parts):
    installed = armed(parts)
    reply(parts, max_tokens=8, depth=0, seed=None)
    assert installed.latch.count == 0
    reply(parts, max_tokens=8, seed=None)
    assert installed.latch.count > 0


def test_the_stock_policy_is_constant():
    policy = ConstantDepth(3)
    assert [policy.choose("head", room) for room in (0, 2, 9)] == [0, 2, 3]
    assert policy.notes() == ()
