from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrun.lanes import order
from mtrun.lanes.contract import Stage


def lanes(**edges):
    """Lanes by name from dicts of what differs from a plain engine lane."""
    plain = {"requires": (), "excludes": (), "auto": True, "stage": Stage.ENGINE}
    return {name: SimpleNamespace(name=name, **{**plain, **given}) for name, given in edges.items()}


def test_a_lane_follows_all_it_requires():
    found = order.topological(lanes(c={"requires": ("b",)}, b={"requires": ("a",)}, a={}, d={}))
    assert found.index("a") < found.index("b") < found.index("c")


def test_catalogue_order_decides_where_edges_do_not():
    assert order.topological(lanes(b={}, a={}, c={})) == ("b", "a", "c")


def test_lanes_of_the_process_stage_come_first():
    assert order.topological(lanes(a={}, b={"stage": Stage.PROCESS}, c={})) == ("b", "a", "c")


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ({"a": {"requires": ("b",)}, "b": {"requires": ("a",)}}, "circle"),
        ({"a": {"requires": ("a",)}}, "circle"),
        ({"a": {"requires": ("ghost",)}}, "ghost, which is not in the catalogue"),
        ({"a": {"excludes": ("ghost",)}}, "ghost, which is not in the catalogue"),
        ({"a": {"requires": ("b",)}, "b": {"excludes": ("a",)}}, "requires and excludes b"),
        ({"a": {"requires": ("b",), "stage": Stage.PROCESS}, "b": {}}, "before the engine exists"),
    ],
)
def test_edges_that_no_order_can_satisfy_are_refused(edges, words):
    with pytest.raises(ValueError, match=words):
        order.topological(lanes(**edges))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_every_acyclic_graph_is_ordered(data):
    names = [f"lane{index}" for index in range(data.draw(st.integers(1, 7)))]
    edges = {
        name: {"requires": tuple(data.draw(st.lists(st.sampled_from(names[:index] or [name]), unique=True)))}
        if index
        else {}
        for index, name in enumerate(names)
    }
    shuffled = {name: edges[name] for name in data.draw(st.permutations(names))}
    found = order.topological(lanes(**shuffled))
    assert sorted(found) == sorted(names)
    for name in names:
        assert all(found.index(other) < found.index(name) for other in edges[name].get("requires", ()))


def test_an_explicit_lane_whose_requirement_is_switched_off_contradicts():
    (text,) = order.contradictions(lanes(a={}, b={"requires": ("a",)}), {"b": True, "a": False})
    assert "lanes.b=true" in text
    assert "lanes.a=false" in text
    assert "set lanes.a=true or lanes.b=false" in text


def test_a_requirement_is_followed_through_other_lanes():
    graph = lanes(a={}, b={"requires": ("a",)}, c={"requires": ("b",)})
    (text,) = order.contradictions(graph, {"c": True, "a": False})
    assert "lanes.c=true needs lane a" in text


def test_an_explicit_lane_needs_its_never_automatic_requirement_spelled_out():
    (text,) = order.contradictions(lanes(a={"auto": False}, b={"requires": ("a",)}), {"b": True})
    assert "add lanes.a=true" in text


@pytest.mark.parametrize("sides", [{"a": {"excludes": ("b",)}, "b": {}}, {"a": {}, "b": {"excludes": ("a",)}}])
def test_two_explicit_lanes_that_exclude_each_other_contradict_whichever_names_it(sides):
    (text,) = order.contradictions(lanes(**sides), {"a": True, "b": True})
    assert text == "lanes.a=true and lanes.b=true exclude each other: set lanes.a=false or lanes.b=false"


def test_a_needed_lane_excluded_by_an_explicit_one_contradicts():
    graph = lanes(a={}, b={"requires": ("a",)}, c={"excludes": ("a",)})
    (text,) = order.contradictions(graph, {"b": True, "c": True})
    assert "lane a (needed by lanes.b=true) and lanes.c=true exclude each other" in text


def test_lanes_nobody_decided_never_contradict():
    graph = lanes(a={"excludes": ("b",)}, b={}, c={"requires": ("a",)})
    assert order.contradictions(graph, {}) == []
    assert order.contradictions(graph, {"b": True}) == []
    assert order.contradictions(graph, {"a": False}) == []
