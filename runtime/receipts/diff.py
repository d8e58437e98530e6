"""Two windows compared: what was set, and what came of it. Times, readings and sentences for people are no settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mtrun.runtime.receipts.opened import Receipt
from mtrun.runtime.receipts.text import columns, decided_by, figure, figures, first_difference, leaves, ratio, shown

ASKED = ("tokens", "context", "request_seed", "prompt_digest")
_READINGS = ("cpu_mhz",)  # of a machine: what it happened to show
_TOLD = ("head.reason",)  # of a pack: sentences
_CODE = ("law_code_sha256", "native_sha256", "native_sources_sha256")
_DECLINED = "declined"


@dataclass(frozen=True)
class Difference:
    """One thing that was set otherwise. `left` and `right` are texts with who decided, where somebody did."""

    section: str  # config, sampler, law, pack, lanes, code, versions, machine
    key: str
    left: str
    right: str


def setting_differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Difference]:
    """What two settings differ in, section by section; empty where they are the same."""
    return [
        *_config(left, right),
        *_plain("sampler", left["sampler"], right["sampler"]),
        *_plain("law", left["law"], right["law"]),
        *_plain("pack", left["pack"], right["pack"], _TOLD),
        *_lanes(left, right),
        *_code(left, right),
        *_plain("versions", left["versions"], right["versions"]),
        *_plain("machine", left["machine"], right["machine"], _READINGS),
    ]


def pack_differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Difference]:
    """The same for two pack identities alone."""
    return list(_plain("pack", left, right, _TOLD))


def told(left: Receipt, right: Receipt) -> str:
    """The whole comparison in readable lines."""
    found = setting_differences(left.setting, right.setting)
    lines = [f"A  {left.path}", f"B  {right.path}"]
    lines += ["settings differ", *section_lines(found)] if found else ["settings are the same"]
    asked = list(_plain("asked", _only(left.window, ASKED), _only(right.window, ASKED)))
    lines += ["asked for something else", *section_lines(asked)] if asked else ["asked for the same"]
    return "\n".join([*lines, *output_lines(left.window, right.window), *figure_lines(left.window, right.window)])


def section_lines(found: list[Difference]) -> list[str]:
    """Differences as columns: section, key, A -> B."""
    return columns([(one.section, one.key, f"{one.left} -> {one.right}") for one in found])


def output_lines(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    """Whether the replies are equal, and where not."""
    at = first_difference(left["ids"], right["ids"])
    if at is None:
        return [f"output is equal: {len(left['ids'])} tokens, digest {left['digest'][:16]}"]
    ends = [str(one["ids"][at]) if at < len(one["ids"]) else "no more" for one in (left, right)]
    return [f"output differs from token {at} on: {ends[0]} -> {ends[1]}"]


def figure_lines(left: Mapping[str, Any], right: Mapping[str, Any], heads: tuple[str, str] = ("A", "B")) -> list[str]:
    """Figures side by side with their ratio, those of both windows."""
    ours, theirs = figures(left), figures(right)
    names = [*ours, *(name for name in theirs if name not in ours)]
    rows = [(name, *(figure(one.get(name)) for one in (ours, theirs)), ratio(ours.get(name), theirs.get(name)))
            for name in names]  # fmt: skip
    verdicts = _engaged(left, right)
    return [*columns([("figure", *heads, f"{heads[1]}/{heads[0]}"), *rows], ""), *verdicts]


def _engaged(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    """Lanes whose code ran in one window and not in the other."""
    states = [{lane: state for lane, (state, _) in one["verdicts"].items()} for one in (left, right)]
    lanes = [lane for lane in dict.fromkeys((*states[0], *states[1])) if states[0].get(lane) != states[1].get(lane)]
    rows = [(lane, f"{states[0].get(lane, 'absent')} -> {states[1].get(lane, 'absent')}") for lane in lanes]
    return ["lanes that ran otherwise", *columns(rows)] if rows else []


def _config(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[Difference]:
    """Values with who decided each. `stamp` repeats the lanes, which are compared by their verdicts."""
    values = [dict(leaves(one["config"])) for one in (left, right)]
    for key in dict.fromkeys((*values[0], *values[1])):
        if key.startswith(("stamp.", "lanes.")) or values[0].get(key) == values[1].get(key):
            continue
        texts = [f"{shown(v.get(key))}, {decided_by(one, key)}" for v, one in zip(values, (left, right), strict=True)]
        yield Difference("config", key, *texts)


def _lanes(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[Difference]:
    """Verdicts before serving: in place or declined, and by which code of reason."""
    lanes = [{lane["lane"]: lane for lane in one["audit"]["lanes"]} for one in (left, right)]
    for name in dict.fromkeys((*lanes[0], *lanes[1])):
        states = [_standing(one.get(name)) for one in lanes]
        if states[0] != states[1]:
            yield Difference("lanes", name, *(_told(one.get(name)) for one in lanes))


def _standing(lane: Mapping[str, Any] | None) -> tuple[str, str] | None:
    if lane is None:
        return None
    return (lane["state"], lane["code"]) if lane["state"] == _DECLINED else ("in place", "")


def _told(lane: Mapping[str, Any] | None) -> str:
    if lane is None:
        return "absent"
    by = (lane.get("decided_by") or {}).get("source", "unknown")
    return f"{lane['state']}, {by}" + (f" ({lane['reason'].rstrip('.')})" if lane["state"] == _DECLINED else "")


def _code(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[Difference]:
    """A commit alone is no other code: its sources may be the same. A lane on one side alone is a verdict's matter."""
    if left["code"]["source_sha256"] != right["code"]["source_sha256"]:
        yield from _plain("code", left["code"], right["code"])
    yield from _plain("code", _only(left, _CODE), _only(right, _CODE))
    lanes = [one.get("lanes_code_sha256") or {} for one in (left, right)]
    both = tuple(lane for lane in lanes[0] if lane in lanes[1])
    yield from _plain("code of lanes", _only(lanes[0], both), _only(lanes[1], both))


def _only(found: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: found.get(key) for key in keys}


def _plain(
    section: str, left: Mapping[str, Any], right: Mapping[str, Any], ignored: tuple[str, ...] = ()
) -> Iterator[Difference]:
    """Whatever is not equal. An empty object is no value beside one that holds some."""
    values = [{key: value for key, value in leaves(one) if value != {}} for one in (left, right)]
    for key in dict.fromkeys((*values[0], *values[1])):
        if key not in ignored and values[0].get(key) != values[1].get(key):
            yield Difference(section, key, shown(values[0].get(key)), shown(values[1].get(key)))
