from types import SimpleNamespace

import pytest

from mtrun.lanes.contract import Decision, Proof, Stage
from mtrun.runtime.arming.autoarm import choose
from mtrun.runtime.arming.install import Installation, Orders
from mtrun.runtime.errors import LaneError, StampError
from mtrun.runtime.verdicts import DecidedBy, State, VerdictRegistry

NO = Decision(False, "shape", "the shapes are odd.")  # with the stop of a sentence: it is embedded in longer ones
BAD = Proof(False, "rows differ", {"max_abs_error": 3.0})


@pytest.fixture
def installation(evidence):
    """Choose, stamp and prepare, as the engine does."""

    def make(lanes, explicit=None):
        explicit = explicit or {}
        decisions = choose(lanes, evidence, explicit)
        stamped = {name: (decision.ok, DecidedBy("auto-arm", "")) for name, decision in decisions.items()}
        registry = VerdictRegistry(lanes)
        return Installation(Orders(lanes, evidence, {**stamped, **explicit}, decisions), registry)

    return make


def arm(installation, parts):
    installation.arm(Stage.PROCESS)
    installation.arm(Stage.ENGINE, parts)
    return {verdict.lane: verdict for verdict in installation.registry.verdicts()}


def test_lanes_are_installed_and_proved_in_order(make_lanes, installation, parts, log):
    found = arm(installation(make_lanes(b={"requires": ("a",)}, a={})), parts)
    assert log == ["install a", "prove a", "install b", "prove b"]
    assert parts.trunk == "b(a(stock trunk))"
    assert {verdict.state for verdict in found.values()} == {State.ARMED}
    assert found["a"].decided_by == DecidedBy("auto-arm", "")


def test_the_process_stage_is_all_in_before_the_first_proof(make_lanes, installation, parts, log):
    early = {"stage": Stage.PROCESS}
    arm(installation(make_lanes(x={}, a=early, b=early)), parts)
    assert log == ["install a", "install b", "prove a", "prove b", "install x", "prove x"]


def test_undo_takes_lanes_out_in_reverse_and_only_once(make_lanes, installation, parts, log):
    made = installation(make_lanes(a={}, b={}, early={"stage": Stage.PROCESS}))
    arm(made, parts)
    log.clear()
    made.undo()
    made.undo()
    assert log == ["undo b", "undo a", "undo early"]
    assert parts.trunk == "stock trunk"


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ({"install_error": RuntimeError("no room")}, "install_failed", "RuntimeError: no room"),
        ({"proof": BAD}, "proof_failed", "rows differ"),
        ({"proof_error": ValueError("odd shape")}, "proof_failed", "ValueError: odd shape"),
        ({"support": NO}, "shape", "the shapes are odd"),
    ],
)
def test_a_chosen_lane_that_fails_is_declined_and_the_stock_path_serves(
    make_lanes, installation, parts, fault, code, words
):
    found = arm(installation(make_lanes(a=fault, b={})), parts)
    assert (found["a"].state, found["a"].code) == (State.DECLINED, code)
    assert words in found["a"].reason
    assert parts.trunk == "b(stock trunk)"


def test_a_failed_proof_keeps_its_figures(make_lanes, installation, parts):
    assert arm(installation(make_lanes(a={"proof": BAD})), parts)["a"].proof == BAD


def test_what_requires_a_lane_that_failed_is_declined_too(make_lanes, installation, parts, log):
    found = arm(installation(make_lanes(a={"proof": BAD}, b={"requires": ("a",)}, c={"requires": ("b",)})), parts)
    assert [found[name].code for name in "abc"] == ["proof_failed", "requires", "requires"]
    assert "rows differ" in found["b"].reason
    assert log == ["install a", "prove a", "undo a"]


def test_in_the_process_stage_dependents_are_undone_before_what_they_stand_on(make_lanes, installation, parts, log):
    early = {"stage": Stage.PROCESS}
    lanes = make_lanes(a={**early, "proof": BAD}, b={**early, "requires": ("a",)}, c=early)
    found = arm(installation(lanes), parts)
    assert log == ["install a", "install b", "install c", "prove a", "undo b", "undo a", "prove c"]
    assert [found[name].state.value for name in "abc"] == ["declined", "declined", "armed"]


@pytest.mark.parametrize("source", ["command line", "profile file", "user file", "group file"])
@pytest.mark.parametrize(
    "fault", [{"install_error": RuntimeError("no room")}, {"proof": BAD}, {"proof_error": ValueError("odd")}]
)
def test_a_lane_asked_for_that_fails_stops_the_start_up_with_all_undone(
    make_lanes, installation, parts, said, log, fault, source
):
    made = installation(make_lanes(first={}, asked=fault), {"asked": said(True, source, "lanes.asked=true")})
    with pytest.raises(LaneError) as caught:
        arm(made, parts)
    assert caught.value.exit_code == 2
    assert f"lane asked was asked for ({source}, lanes.asked=true)" in str(caught.value)
    assert "set lanes.asked=false" in str(caught.value)
    assert parts.trunk == "stock trunk"
    assert log[-1] == "undo first"
    assert made.stack == []


def test_an_unsupported_lane_asked_for_is_refused_before_anything_is_installed(
    make_lanes, installation, parts, said, log
):
    with pytest.raises(LaneError, match="the shapes are odd"):
        arm(installation(make_lanes(a={}, b={"support": NO}), {"b": said(True)}), parts)
    assert log == []


def test_a_lane_asked_for_over_a_requirement_that_is_declined_is_refused_early(
    make_lanes, installation, parts, said, log
):
    with pytest.raises(LaneError, match="requires a, which is declined: the shapes are odd; set lanes"):
        arm(installation(make_lanes(a={"support": NO}, b={"requires": ("a",)}), {"b": said(True)}), parts)
    assert log == []


def test_a_lane_asked_for_over_a_requirement_that_fails_its_proof_is_refused(make_lanes, installation, parts, said):
    with pytest.raises(LaneError, match="requires a, which is declined: rows differ"):
        arm(installation(make_lanes(a={"proof": BAD}, b={"requires": ("a",)}), {"b": said(True)}), parts)
    assert parts.trunk == "stock trunk"


def test_a_lane_switched_off_is_declined_by_the_operator(make_lanes, installation, parts, said, log):
    found = arm(installation(make_lanes(a={}), {"a": said(False, "user file", "mine.yaml")}), parts)
    assert (found["a"].state, found["a"].code) == (State.DECLINED, "operator")
    assert found["a"].decided_by == DecidedBy("user file", "mine.yaml")
    assert log == []


def test_a_lane_outside_the_auto_arm_is_armed_when_asked_for(make_lanes, installation, parts, said):
    lanes = make_lanes(a={"auto": False})
    assert arm(installation(lanes), parts)["a"].code == "not_auto"
    assert arm(installation(lanes, {"a": said(True)}), parts)["a"].state is State.ARMED


def test_an_installation_that_raises_half_way_leaves_the_stock_parts(make_lanes, installation, parts):
    arm(installation(make_lanes(a={"install_error": RuntimeError("half-way")})), parts)
    assert parts.trunk == "stock trunk"


def test_a_lane_that_fails_and_cannot_be_undone_stops_the_start_up(make_lanes, installation, parts):
    with pytest.raises(LaneError, match=r"could not be undone \(RuntimeError: stuck\); set lanes\.a=false"):
        arm(installation(make_lanes(a={"proof": BAD, "undo_error": RuntimeError("stuck")})), parts)


def test_an_undo_that_leaves_a_seam_replaced_is_not_served_with(make_lanes, installation, parts):
    with pytest.raises(LaneError, match=r"left parts\.trunk replaced"):
        arm(installation(make_lanes(a={"proof": BAD, "leaks": True})), parts)


def test_undo_tries_every_lane_and_names_those_that_failed(make_lanes, installation, parts, log):
    made = installation(make_lanes(a={}, b={"undo_error": RuntimeError("stuck")}))
    arm(made, parts)
    with pytest.raises(LaneError, match="could not be undone: b"):
        made.undo()
    assert log[-2:] == ["undo b", "undo a"]


def test_an_interrupted_start_up_undoes_what_was_in_place(make_lanes, installation, parts, log):
    made = installation(make_lanes(a={}, b={"install_error": None, "proof_error": KeyboardInterrupt()}))
    with pytest.raises(KeyboardInterrupt):
        arm(made, parts)
    assert log[-2:] == ["undo b", "undo a"]


def test_lanes_without_a_value_are_not_installed(make_lanes, evidence):
    lanes = make_lanes(a={}, b={})
    orders = Orders(lanes, evidence, {"a": (True, DecidedBy("auto-arm", ""))}, choose(lanes, evidence))
    with pytest.raises(StampError, match="without a value: b"):
        Installation(orders, VerdictRegistry(lanes)).arm(Stage.PROCESS)


def test_proofs_never_engage_a_lane_and_served_code_does(make_lanes, installation, parts):
    lanes = make_lanes(a={}, b={})
    made = installation(lanes)
    assert {verdict.state for verdict in arm(made, parts).values()} == {State.ARMED}
    made.registry.start_serving()
    lanes["b"].latch.hit()
    assert [verdict.state.value for verdict in made.registry.verdicts()] == ["armed", "engaged"]


def test_evidence_of_a_mac_is_gathered_without_a_linux_library(monkeypatch, evidence):
    from mtrun.runtime.arming import evidence as module

    monkeypatch.setattr(module, "platform", SimpleNamespace(system=lambda: "Darwin", machine=lambda: "arm64"))
    found = module.gather(threads=4, law="cascade", depth=2, pack=evidence.pack)
    assert (found.device, found.blas_forwarder, found.blas_target) == ("metal", None, None)
    assert (found.threads, found.law, found.depth) == (4, "cascade", 2)
