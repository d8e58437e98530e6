"""Edges between lanes: the order in which they are decided, and demands that cannot be met together."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from mtrun.lanes.contract import LaneSpec, Stage


def topological(lanes: Mapping[str, LaneSpec]) -> tuple[str, ...]:
    """Names so that each lane follows all it requires; PROCESS lanes first, catalogue order where edges leave a choice.

    Raises ValueError, since only a wrong lane file can cause it: a cycle, an edge to a lane that does not exist, a lane
    that excludes what it requires, or a PROCESS lane that requires an ENGINE lane.
    """
    _check_edges(lanes)
    position = {name: (lane.stage is not Stage.PROCESS, index) for index, (name, lane) in enumerate(lanes.items())}
    sorter = TopologicalSorter({name: lane.requires for name, lane in lanes.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        raise ValueError(f"lanes require each other in a circle: {' -> '.join(error.args[1])}") from error
    order: list[str] = []
    ready: list[str] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=position.__getitem__)
        order.append(ready[0])
        sorter.done(ready.pop(0))
    return tuple(order)


def required_by(lanes: Mapping[str, LaneSpec], name: str) -> tuple[str, ...]:
    """All that a lane requires, directly or through others, nearest first."""
    found: list[str] = []
    queue = list(lanes[name].requires)
    while queue:
        current = queue.pop(0)
        if current not in found:
            found.append(current)
            queue.extend(lanes[current].requires)
    return tuple(found)


def excluded_by(lanes: Mapping[str, LaneSpec], name: str) -> tuple[str, ...]:
    """Lanes that cannot serve beside `name`: an exclusion named by either side binds both."""
    return tuple(other for other in lanes if other in lanes[name].excludes or name in lanes[other].excludes)


def needed(lanes: Mapping[str, LaneSpec], explicit: Mapping[str, bool]) -> dict[str, str]:
    """Lanes that have to be in place for the explicit demands: name -> the demanded lane it serves (often itself)."""
    asked = [name for name in lanes if explicit.get(name, False)]
    found = {name: name for name in asked}
    for name in asked:
        for other in required_by(lanes, name):
            found.setdefault(other, name)
    return found


def contradictions(lanes: Mapping[str, LaneSpec], explicit: Mapping[str, bool]) -> list[str]:
    """Explicit demands (lane -> wanted) that cannot hold together, one clause each: both lanes and the fix.

    A lane chosen by itself never contradicts: it gives way.
    """
    by_need = needed(lanes, explicit)
    found: list[str] = []
    for name, asker in by_need.items():
        if explicit.get(name) is False:
            found.append(
                f"lanes.{asker}=true needs lane {name}, which lanes.{name}=false switches off: "
                f"set lanes.{name}=true or lanes.{asker}=false"
            )
        elif name not in explicit and not lanes[name].auto:
            found.append(
                f"lanes.{asker}=true needs lane {name}, which is never armed by itself: "
                f"add lanes.{name}=true or set lanes.{asker}=false"
            )
    for first, second in _excluding_pairs(lanes, tuple(by_need)):
        found.append(_exclusion(first, second, by_need))
    return found


def _check_edges(lanes: Mapping[str, LaneSpec]) -> None:
    for name, lane in lanes.items():
        for other in (*lane.requires, *lane.excludes):
            if other not in lanes:
                raise ValueError(f"lane {name} has an edge to {other}, which is not in the catalogue")
        for other in lane.requires:
            if other in excluded_by(lanes, name):
                raise ValueError(f"lane {name} requires and excludes {other}")
            if lane.stage is Stage.PROCESS and lanes[other].stage is Stage.ENGINE:
                raise ValueError(f"lane {name} is installed before the engine exists and cannot require {other}")


def _excluding_pairs(lanes: Mapping[str, LaneSpec], names: tuple[str, ...]) -> list[tuple[str, str]]:
    order = list(lanes)
    return [
        (first, second)
        for first in names
        for second in excluded_by(lanes, first)
        if second in names and order.index(first) < order.index(second)
    ]


def _exclusion(first: str, second: str, by_need: Mapping[str, str]) -> str:
    demands = [_demand(name, by_need[name]) for name in (first, second)]
    askers = dict.fromkeys(by_need[name] for name in (first, second))
    fix = " or ".join(f"lanes.{name}=false" for name in askers)
    return f"{demands[0]} and {demands[1]} exclude each other: set {fix}"


def _demand(name: str, asker: str) -> str:
    return f"lanes.{name}=true" if name == asker else f"lane {name} (needed by lanes.{asker}=true)"
