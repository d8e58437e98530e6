"""Every key of the schema as a flat list, with the strict reading of what may be written there."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

from mtrun.runtime.config.interval import Interval, interval
from mtrun.runtime.config.nearest import did_you_mean
from mtrun.runtime.config.schema import LANE_NAMES, RunConfig
from mtrun.runtime.config.size import SIZE_HINT, parse_bytes


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One key that holds a value. `type` is the Python type without None."""

    key: str
    type: type
    optional: bool
    default: Any
    bounds: Interval | None = None
    size: bool = False
    secret: bool = False

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.type) if issubclass(self.type, Enum) else ()

    @property
    def textual(self) -> bool:
        """The value is text as typed, never a number, a list or a quoted form of it."""
        return self.type is str

    def wants(self) -> str:
        """What may be written here, as the object of `takes`."""
        if self.choices:
            text = "one of " + ", ".join(self.choices)
        elif self.size:
            text = SIZE_HINT
        elif self.bounds is not None:
            text = f"a {'whole ' if self.type is int else ''}number in {self.bounds.text}"
        else:
            text = {bool: "true or false", str: "text", list: f"a list such as {self.key}=[a,b]"}[self.type]
        return f"{text}, or null" if self.optional else text

    def problem(self, value: Any) -> str | None:
        """One sentence without a full stop, or None where the value may stay. Secrets are not repeated."""
        if (value is None and self.optional) or (value is not None and self._fits(value)):
            return None
        shown = "what was given" if self.secret else _shown(value)
        hint = did_you_mean(value, self.choices) if isinstance(value, str) and self.choices else ""
        return f"{self.key} takes {self.wants()}, not {shown}{hint}"

    def _fits(self, value: Any) -> bool:
        if self.choices:
            return (value.name if isinstance(value, Enum) else value) in self.choices
        if self.size:
            return _is_size(value)
        if self.type in (int, float):
            return _is_number(value, self.type) and (self.bounds is None or self.bounds.holds(value))
        if self.type is list:
            return isinstance(value, list | tuple) and all(isinstance(item, str) and item for item in value)
        return isinstance(value, self.type) and value != ""


def _is_number(value: Any, kind: type) -> bool:
    # bool is a subclass of int, and `true` where a number belongs is a slip, not a 1.
    allowed = (int,) if kind is int else (int, float)
    return isinstance(value, allowed) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return False
    try:
        return parse_bytes(str(value)) > 0
    except ValueError:
        return False


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


@functools.cache
def leaves() -> Mapping[str, Leaf]:
    """All settable keys in schema order. `stamp.*` is not among them: only the auto-arm writes there."""
    found: dict[str, Leaf] = {}
    hints = typing.get_type_hints(RunConfig)
    for section in dataclasses.fields(RunConfig):
        if section.name == "lanes":
            found |= {f"lanes.{name}": Leaf(f"lanes.{name}", bool, False, f"${{stamp.{name}}}") for name in LANE_NAMES}
        elif section.name != "stamp":
            found |= _section_leaves(section.name, hints[section.name])
    return types.MappingProxyType(found)


def _section_leaves(section: str, owner: type) -> dict[str, Leaf]:
    hints = typing.get_type_hints(owner)
    found: dict[str, Leaf] = {}
    for item in dataclasses.fields(owner):
        members = [part for part in typing.get_args(hints[item.name]) if part is not type(None)]
        optional = type(None) in typing.get_args(hints[item.name])
        bare = members[0] if optional else hints[item.name]
        kind = typing.get_origin(bare) or bare
        default = item.default_factory() if item.default is dataclasses.MISSING else item.default  # type: ignore[misc]
        key = f"{section}.{item.name}"
        bounds = interval(item.metadata["bounds"]) if "bounds" in item.metadata else None
        found[key] = Leaf(
            key, kind, optional, default, bounds, item.metadata.get("size", False), item.metadata.get("secret", False)
        )
    return found


@functools.cache
def sections() -> tuple[str, ...]:
    """Top-level names of the tree, without `stamp`."""
    return tuple(dict.fromkeys(key.partition(".")[0] for key in leaves()))


def members(section: str) -> tuple[str, ...]:
    """Full keys of one section."""
    return tuple(key for key in leaves() if key.startswith(f"{section}."))
