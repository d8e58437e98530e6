import json
from types import SimpleNamespace

import pytest

from mtrun.lanes.contract import Decision, Evidence, Exactness, Installed, Latch, PackEvidence, Proof
from mtrun.runtime.errors import LaneError, StampError
from mtrun.runtime.verdict_table import table
from mtrun.runtime.verdicts import DecidedBy, State, VerdictRegistry, summary

AUTO = DecidedBy("auto-arm", "")
USER = DecidedBy("command line", "lanes.b=false")
PROOF = Proof(True, "parity holds", {"gflops": 42.5, "worst": float("inf")})


@pytest.fixture
def registry():
    lanes = {name: SimpleNamespace(name=name, exactness=Exactness.EXACT) for name in ("a", "b", "c")}
    return VerdictRegistry(lanes)


@pytest.fixture
def latch():
    return Latch()


@pytest.fixture
def complete(registry, latch):
    registry.decline("c", "shape", "the shapes are odd", AUTO, Proof(False, "rows differ"))
    registry.decline("b", "operator", "lanes.b=false from command line", USER)
    registry.arm("a", Installed(lambda: None, latch), PROOF, AUTO)
    return registry


@pytest.fixture
def evidence():
    pack = PackEvidence("tiny", "llama", 64, 256, 2, None, Decision(True, "present", "fits"), None, True)
    return Evidence("Linux", "x86_64", "cpu", False, None, False, None, 2, "exact", 3, pack)


def states(registry):
    return {verdict.lane: verdict.state.value for verdict in registry.verdicts()}


def test_nothing_can_be_asked_before_every_lane_has_a_verdict(registry, evidence):
    registry.decline("b", "operator", "said so", USER)
    for ask in (
        registry.verdicts,
        registry.start_serving,
        lambda: registry.verdict("b"),
        lambda: registry.to_json(evidence, {}),
    ):
        with pytest.raises(StampError, match="without a verdict: a, c"):
            ask()


def test_a_lane_gets_exactly_one_verdict(complete):
    with pytest.raises(LaneError, match="already has a verdict"):
        complete.decline("a", "late", "changed its mind", AUTO)
    assert complete.verdict("a").state is State.ARMED


def test_a_lane_outside_the_catalogue_has_no_verdict(complete):
    for ask in (lambda: complete.verdict("ghost"), lambda: complete.stand_aside("ghost", "x")):
        with pytest.raises(LaneError, match="there is no lane ghost: name one of a, b, c"):
            ask()


def test_verdicts_come_in_catalogue_order(complete):
    assert [verdict.lane for verdict in complete.verdicts()] == ["a", "b", "c"]


def test_a_latch_hit_by_proof_or_warm_up_does_not_engage(complete, latch):
    latch.hit()
    assert states(complete)["a"] == "armed"
    complete.start_serving()
    assert states(complete) == {"a": "armed", "b": "declined", "c": "declined"}


def test_only_code_that_ran_while_serving_engages(complete, latch):
    complete.start_serving()
    latch.hit()
    latch.hit()
    verdict = complete.verdict("a")
    assert (verdict.state, verdict.engaged_count) == (State.ENGAGED, 2)
    assert verdict.first_engaged_at >= complete.serving_since


def test_serving_again_forgets_what_served_before(complete, latch):
    complete.start_serving()
    latch.hit()
    complete.stand_aside("a", "too long")
    complete.start_serving()
    verdict = complete.verdict("a")
    assert (verdict.state, verdict.engaged_count, verdict.stand_asides) == (State.ARMED, 0, {})


@pytest.fixture
def stands_in(registry, latch):
    """`a` does the work of `b`; both are armed, and `c` is declined."""
    registry.arm("a", Installed(lambda: None, latch, serves_for=("b", "c")), PROOF, AUTO)
    own = Latch()
    registry.arm("b", Installed(lambda: None, own), Proof(True, "Parity holds."), AUTO)
    registry.decline("c", "shape", "The shapes are odd.", AUTO)
    return own


def test_a_lane_whose_work_another_does_stays_armed_and_names_it(registry, stands_in, latch):
    assert registry.so_far("b").served_by is None
    registry.start_serving()
    assert registry.verdict("b").served_by is None
    latch.hit()
    served = registry.verdict("b")
    assert (served.state, served.engaged_count, served.served_by) == (State.ARMED, 0, "a")
    assert served.reason == "Parity holds; its work is done by a."
    assert "its work is done by a." in table(registry.verdicts(), 120)
    assert registry.verdict("a").served_by is None
    declined = registry.verdict("c")
    assert (declined.reason, declined.served_by) == ("The shapes are odd.", None)


def test_a_lane_that_ran_itself_is_engaged_whoever_else_does_its_work(registry, stands_in, latch):
    registry.start_serving()
    latch.hit()
    stands_in.hit()
    verdict = registry.verdict("b")
    assert (verdict.state, verdict.served_by, verdict.reason) == (State.ENGAGED, None, "Parity holds.")
    registry.start_serving()
    assert (registry.verdict("b").state, registry.verdict("b").served_by) == (State.ARMED, None)


def test_a_native_counter_of_the_other_lane_is_read_too(registry):
    moved = [0]

    def read(latch):
        latch.count, moved[0] = latch.count + moved[0], 0

    registry.arm("a", Installed(lambda: None, Latch(), latch_reader=read, serves_for=("b",)), PROOF, AUTO)
    registry.arm("b", Installed(lambda: None, Latch()), PROOF, AUTO)
    registry.decline("c", "shape", "odd", AUTO)
    registry.start_serving()
    assert registry.verdict("b").served_by is None
    moved[0] = 2
    assert registry.verdict("b").served_by == "a"


def test_a_native_counter_is_read_when_asked(registry):
    moved = [5]

    def read(latch):
        latch.count, moved[0] = latch.count + moved[0], 0
        latch.first = latch.first or (1.0 if latch.count else None)

    registry.arm("a", Installed(lambda: None, Latch(), latch_reader=read), PROOF, AUTO)
    for name in ("b", "c"):
        registry.decline(name, "operator", "said so", USER)
    registry.start_serving()
    assert registry.verdict("a").state is State.ARMED
    moved[0] = 3
    assert (registry.verdict("a").state, registry.verdict("a").engaged_count) == (State.ENGAGED, 3)


def test_stand_asides_are_counted_by_reason_and_engage_nothing(complete):
    complete.start_serving()
    for reason in ("penalties", "penalties", "logprobs"):
        complete.stand_aside("a", reason)
    complete.stand_aside("b", "not there")
    assert complete.verdict("a").stand_asides == {"penalties": 2, "logprobs": 1}
    assert complete.verdict("a").state is State.ARMED
    assert complete.verdict("b").stand_asides == {"not there": 1}


def test_two_engines_share_no_verdict(complete):
    other = VerdictRegistry({"a": SimpleNamespace(name="a", exactness=Exactness.EXACT)})
    assert other.undecided == ("a",)
    assert complete.undecided == ()


def test_a_provenance_source_may_be_an_enumeration(registry):
    registry.decline("a", "operator", "x", SimpleNamespace(source=State.ARMED, text="y"))
    assert registry.so_far("a").decided_by == DecidedBy("armed", "y")


def test_the_audit_keeps_its_schema(complete, evidence):
    law = {"name": "exact", "rule": None, "parameters": {}, "distribution_exact": True}
    audit = json.loads(json.dumps(complete.to_json(evidence, law), allow_nan=False))
    assert list(audit) == ["schema", "versions", "device", "pack", "law", "serving_since", "summary", "lanes"]
    assert audit["schema"] == "mtrun.audit/1"
    assert list(audit["versions"]) == ["mtrun", "mlx", "mlx-lm", "python"]
    assert audit["device"] == {"system": "Linux", "machine": "x86_64", "device": "cpu", "threads": 2}
    assert audit["pack"]["head"] == {"ok": True, "code": "present", "reason": "fits"}
    assert audit["law"] == law
    assert audit["lanes"] == [
        {
            "lane": "a",
            "state": "armed",
            "code": "proved",
            "reason": "parity holds",
            "exactness": "exact",
            "decided_by": {"source": "auto-arm", "text": ""},
            "proof": {"ok": True, "reason": "parity holds", "figures": {"gflops": 42.5, "worst": None}},
            "first_engaged_at": None,
            "engaged_count": 0,
            "served_by": None,
            "stand_asides": {},
        },
        {
            "lane": "b",
            "state": "declined",
            "code": "operator",
            "reason": "lanes.b=false from command line",
            "exactness": "exact",
            "decided_by": {"source": "command line", "text": "lanes.b=false"},
            "proof": None,
            "first_engaged_at": None,
            "engaged_count": 0,
            "served_by": None,
            "stand_asides": {},
        },
        {
            "lane": "c",
            "state": "declined",
            "code": "shape",
            "reason": "the shapes are odd",
            "exactness": "exact",
            "decided_by": {"source": "auto-arm", "text": ""},
            "proof": {"ok": False, "reason": "rows differ", "figures": {}},
            "first_engaged_at": None,
            "engaged_count": 0,
            "served_by": None,
            "stand_asides": {},
        },
    ]


def test_the_summary_counts_each_state(complete, latch):
    assert summary(complete.verdicts()) == "3 lanes: 1 armed, 2 declined"
    complete.start_serving()
    latch.hit()
    assert summary(complete.verdicts()) == "3 lanes: 1 engaged, 2 declined"
    assert summary([]) == "0 lanes: none"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_table_fits_the_width_and_loses_no_word(complete, width):
    text = table(complete.verdicts(), width)
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= max(width, 48)
    assert all(line == line.rstrip() for line in lines)
    assert lines[-1] == "3 lanes: 1 armed, 2 declined"
    for verdict in complete.verdicts():
        assert set(verdict.reason.split()) <= set(text.split())


def test_the_table_shows_the_reason_in_its_column(complete):
    lines = table(complete.verdicts(), 100).splitlines()
    assert lines[0].split() == ["lane", "state", "exactness", "decided", "by", "reason"]
    column = lines[0].index("reason")
    assert lines[4][column:] == "the shapes are odd"
    assert "gflops 42.5" in lines[2]
