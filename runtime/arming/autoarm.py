"""The auto-arm: from evidence to a yes or no for every lane, each with its reason. Pure; installs nothing."""

from __future__ import annotations

from collections.abc import Mapping

from mtrun.lanes import order
from mtrun.lanes.contract import Decision, Evidence, LaneSpec
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.verdicts import DecidedBy, ProvenanceLike

AUTO_ARM = "auto-arm"  # the provenance source of a value that nobody asked for

Wanted = tuple[bool, ProvenanceLike]


def explicit_of(wanted: Mapping[str, Wanted]) -> dict[str, Wanted]:
    """The lanes that somebody decided: profile, file or command line, true or false."""
    return {name: want for name, want in wanted.items() if DecidedBy.of(want[1]).source != AUTO_ARM}


def check_contradictions(lanes: Mapping[str, LaneSpec], explicit: Mapping[str, Wanted]) -> None:
    """Raises ConfigurationError: an unknown lane, or explicit values that cannot hold together (both, and the fix).

    Needs no evidence, so that a contradiction in a profile is found where it is composed.
    """
    for name in explicit:
        if name not in lanes:
            raise ConfigurationError(f"there is no lane {name}: name one of {', '.join(lanes)}")
    found = order.contradictions(lanes, {name: value for name, (value, _) in explicit.items()})
    if found:
        text = "; also ".join(found)
        origins = [_setting(name, want) for name, want in explicit.items() if f"lanes.{name}=" in text]
        raise ConfigurationError(f"{text} ({'; '.join(origins)})")


def choose(
    lanes: Mapping[str, LaneSpec], evidence: Evidence, explicit: Mapping[str, Wanted] | None = None
) -> dict[str, Decision]:
    """One decision for each lane of the catalogue, in catalogue order: `ok` is the value to stamp.

    Explicit lanes keep their value (codes `asked` and `operator`); whether an asked lane can be honoured is found when
    it is installed. A lane chosen here gives way: declined beside an explicit lane that it excludes, or when what it
    requires is declined. Raises ConfigurationError as `check_contradictions` does.
    """
    explicit = explicit or {}
    check_contradictions(lanes, explicit)
    asked = order.needed(lanes, {name: value for name, (value, _) in explicit.items()})
    decisions: dict[str, Decision] = {}
    for name in order.topological(lanes):
        if name in explicit:
            decisions[name] = _explicit(name, explicit[name])
        else:
            decisions[name] = _auto(lanes, name, evidence, decisions, asked)
    return {name: decisions[name] for name in lanes}


def supports(lane: LaneSpec, evidence: Evidence) -> Decision:
    """The lane's own answer; one that raises instead of answering is a no with that reason."""
    try:
        return lane.supports(evidence)
    except Exception as error:
        return Decision(False, "supports_failed", f"its support check raised {describe(error)}")


def describe(error: BaseException) -> str:
    """An exception in one clause: its type and the first line of its message."""
    message = str(error).strip().splitlines()
    return f"{type(error).__name__}: {message[0]}" if message else type(error).__name__


def clause(reason: str) -> str:
    """A lane's sentence as part of a longer one."""
    return reason.strip().rstrip(".")


def _explicit(name: str, want: Wanted) -> Decision:
    return Decision(want[0], "asked" if want[0] else "operator", _setting(name, want))


def _auto(
    lanes: Mapping[str, LaneSpec],
    name: str,
    evidence: Evidence,
    decided: Mapping[str, Decision],
    asked: Mapping[str, str],
) -> Decision:
    lane = lanes[name]
    if not lane.auto:
        return Decision(False, "not_auto", f"never armed by itself: lanes.{name}=true asks for it")
    answer = supports(lane, evidence)
    if not answer.ok:
        return answer
    for other in lane.requires:
        if not decided[other].ok:
            return Decision(False, "requires", f"requires {other}, which is declined: {clause(decided[other].reason)}")
    # A lane that an explicit one needs is not turned away by another chosen lane: the demand stands behind it.
    for other in order.excluded_by(lanes, name):
        chosen = other in decided and decided[other].ok and name not in asked
        if other in asked or chosen:
            return Decision(False, "excludes", f"cannot serve beside {other}, which {_why(other, asked)}")
    return answer


def _why(other: str, asked: Mapping[str, str]) -> str:
    if other not in asked:
        return "is armed already"
    return f"lanes.{asked[other]}=true asks for"


def _setting(name: str, want: Wanted) -> str:
    """An explicit value and where it came from, such as "lanes.kv_q8=false from profile file (turbo.yaml)"."""
    decided = DecidedBy.of(want[1])
    origin = f"{decided.source} ({decided.text})" if decided.text else decided.source
    return f"lanes.{name}={str(want[0]).lower()} from {origin}"
