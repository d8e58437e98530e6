import pytest

from mtrun.lanes.contract import Decision
from mtrun.runtime.arming.autoarm import check_contradictions, choose, explicit_of
from mtrun.runtime.errors import ConfigurationError

NO = Decision(False, "shape", "the shapes are odd")


def test_every_lane_gets_a_decision_in_catalogue_order(make_lanes, evidence):
    lanes = make_lanes(c={"requires": ("b",)}, a={}, b={})
    assert list(choose(lanes, evidence)) == ["c", "a", "b"]
    assert all(decision.ok for decision in choose(lanes, evidence).values())


def test_an_unsupported_lane_keeps_its_own_code_and_reason(make_lanes, evidence):
    assert choose(make_lanes(a={"support": NO}), evidence)["a"] == NO


def test_a_support_check_that_raises_is_a_no_with_that_reason(make_lanes, evidence):
    found = choose(make_lanes(a={"support_error": KeyError("width")}), evidence)["a"]
    assert (found.ok, found.code) == (False, "supports_failed")
    assert "KeyError: 'width'" in found.reason


def test_a_lane_outside_the_auto_arm_is_left_out_and_says_how_to_ask(make_lanes, evidence):
    found = choose(make_lanes(a={"auto": False}), evidence)["a"]
    assert (found.ok, found.code) == (False, "not_auto")
    assert "lanes.a=true" in found.reason


def test_what_a_chosen_lane_requires_decides_it_too(make_lanes, evidence):
    lanes = make_lanes(a={"support": NO}, b={"requires": ("a",)}, c={"requires": ("b",)})
    found = choose(lanes, evidence)
    assert (found["b"].code, found["c"].code) == ("requires", "requires")
    assert "the shapes are odd" in found["c"].reason


def test_a_requirement_switched_off_by_the_user_declines_the_dependent(make_lanes, evidence, said):
    found = choose(make_lanes(a={}, b={"requires": ("a",)}), evidence, {"a": said(False)})
    assert (found["a"].code, found["b"].code) == ("operator", "requires")
    assert "lanes.a=false from command line" in found["b"].reason


def test_of_two_chosen_lanes_that_exclude_each_other_the_first_serves(make_lanes, evidence):
    found = choose(make_lanes(a={}, b={"excludes": ("a",)}), evidence)
    assert (found["a"].ok, found["b"].ok, found["b"].code) == (True, False, "excludes")


def test_a_chosen_lane_gives_way_to_an_explicit_one(make_lanes, evidence, said):
    found = choose(make_lanes(a={}, b={"excludes": ("a",), "auto": False}), evidence, {"b": said(True)})
    assert (found["a"].ok, found["b"].ok) == (False, True)
    assert "lanes.b=true asks for" in found["a"].reason


def test_a_chosen_lane_gives_way_to_one_that_an_explicit_lane_needs(make_lanes, evidence, said):
    lanes = make_lanes(first={"excludes": ("needed",)}, needed={}, asked={"requires": ("needed",)})
    found = choose(lanes, evidence, {"asked": said(True)})
    assert (found["first"].ok, found["needed"].ok, found["asked"].ok) == (False, True, True)


def test_a_contradiction_names_both_lanes_the_fix_and_where_each_came_from(make_lanes, evidence, said):
    explicit = {"b": said(True, "profile file", "turbo.yaml"), "a": said(False), "c": said(True)}
    with pytest.raises(ConfigurationError) as caught:
        choose(make_lanes(a={}, b={"requires": ("a",)}, c={}), evidence, explicit)
    text = str(caught.value)
    assert "set lanes.a=true or lanes.b=false" in text
    assert "lanes.b=true from profile file (turbo.yaml)" in text
    assert "lanes.a=false from command line" in text
    assert "lanes.c" not in text
    assert caught.value.exit_code == 2


def test_a_lane_outside_the_catalogue_is_refused(make_lanes, said):
    with pytest.raises(ConfigurationError, match="there is no lane ghost: name one of a"):
        check_contradictions(make_lanes(a={}), {"ghost": said(True)})


def test_only_the_auto_arm_is_not_explicit(said):
    sources = ("default", "group file", "profile file", "user file", "command line", "derived", "auto-arm")
    wanted = {source: said(True, source) for source in sources}
    assert list(explicit_of(wanted)) == list(sources[:-1])
