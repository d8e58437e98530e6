"""Typed reads from a mapping that came out of a file nobody vouches for: every fault is one PackError sentence."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import PackError

MAX_JSON_BYTES = 16 * 2**20  # the index of a model of 100,000 tensors is about 9 MB
MAX_YAML_BYTES = 2**18  # a manifest of 2,000 files; the parser takes seconds for a megabyte

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Fields:
    """One mapping of a file with the place it stands at, for messages such as `pack.yaml: head.layers ...`."""

    data: Mapping[str, Any]
    where: str

    @staticmethod
    def of(value: Any, where: str) -> Fields:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise PackError(f"{where} must be a mapping with text keys, not {_kind(value)}.")
        return Fields(value, where)

    def allow(self, names: Collection[str]) -> None:
        """Refuse keys outside `names`, naming the nearest allowed one."""
        for key in self.data:
            if key not in names:
                near = difflib.get_close_matches(key, list(names), n=1, cutoff=0.5)
                hint = f"write {near[0]!r} instead." if near else f"allowed keys are {', '.join(sorted(names))}."
                raise PackError(f"{self.where} has the unknown key {shown(key)}: {hint}")

    def has(self, key: str) -> bool:
        return self.data.get(key) is not None

    def mapping(self, key: str) -> Fields:
        return Fields.of(self._present(key), f"{self.where}: {label(key)}")

    def text(self, key: str) -> str:
        value = self._present(key)
        if not isinstance(value, str) or not value.strip():
            raise PackError(f"{self.where}: {label(key)} must be a non-empty text, not {shown(value)}.")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            raise PackError(f"{self.where}: {key} must be true or false, not {shown(value)}.")
        return value

    def choice(self, key: str, choices: Collection[str]) -> str:
        value = self.text(key)
        if value not in choices:
            raise PackError(f"{self.where}: {key} must be one of {', '.join(choices)}, not {shown(value)}.")
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        value = self._present(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise PackError(f"{self.where}: {key} must be a whole number from {low} to {high}, not {shown(value)}.")
        return value

    def number(self, key: str, low: float, high: float) -> float:
        value = self._present(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise PackError(f"{self.where}: {key} must be a number from {low:g} to {high:g}, not {shown(value)}.")
        return float(value)

    def sha256(self, key: str) -> str:
        value = self._present(key)
        if not isinstance(value, str) or not _SHA256.match(value):
            raise PackError(f"{self.where}: {key} must be a sha256 in 64 lower-case hex digits, not {shown(value)}.")
        return value

    def _present(self, key: str) -> Any:
        if not self.has(key):
            raise PackError(f"{self.where} lacks the key {shown(key)}: write it, or fetch the pack again.")
        return self.data[key]


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> Any:
    """The parsed JSON of `path`. Raises PackError when absent, too large or malformed, a repeated key included."""
    try:
        return parse_json(read_text(path, limit))
    except (ValueError, RecursionError) as error:
        words = one_line(error)
        raise PackError(f"{path.name} in {path.parent} is not valid JSON ({words}): fetch the pack again.") from error


def parse_json(text: str) -> Any:
    """JSON whose mappings name every key once: readers differ in which of two they take. Raises ValueError."""
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise ValueError(f"the key {shown(twice)} stands there twice")
    return found


def read_yaml(path: Path, limit: int = MAX_YAML_BYTES) -> Any:
    """The parsed YAML of `path`, plain types only, keys once. Raises PackError when absent, too large or malformed."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            _once([(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
            return super().construct_mapping(node, deep)

    raw = read_text(path, limit)
    try:
        return yaml.load(raw, Loader)
    except Exception as error:  # the library lets through whatever its constructors meet: KeyError, IndexError, ...
        words = one_line(error)
        raise PackError(f"{path.name} in {path.parent} is not valid YAML ({words}): correct it there.") from error


def read_text(path: Path, limit: int) -> str:
    """UTF-8 text of at most `limit` bytes. Raises PackError."""
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise PackError(f"{path.name} in {path.parent} cannot be read ({error.strerror}).") from error
    if len(raw) > limit:
        raise PackError(f"{path.name} in {path.parent} is larger than {limit:,} bytes and is not read.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PackError(f"{path.name} in {path.parent} is not UTF-8 text: fetch the pack again.") from error


def shown(value: Any) -> str:
    """A value for a message: short, on one line."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length():,} bits"  # Python refuses to print very long ones
    text = repr(value) if isinstance(value, (str, int, float, bool)) or value is None else _kind(value)
    return text if len(text) <= 80 else text[:77] + "..."


def label(name: str) -> str:
    """A name from a file for a message: as it is where that is a plain short word."""
    return name if name.isprintable() and len(name) <= 80 else shown(name)


def one_line(error: BaseException, limit: int = 200) -> str:
    """A library's own words for a message: on one line, not longer than `limit`, without a closing period."""
    text = "".join(c if c.isprintable() else " " for c in str(error))
    text = " ".join(text.split()).rstrip(".") or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
