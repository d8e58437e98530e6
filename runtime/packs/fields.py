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

MAX_JSON_BYTES = 64 * 2**20  # tokenizer.json of a 256k vocabulary is about 35 MB
MAX_YAML_BYTES = 2**20

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
        return Fields.of(self._present(key), f"{self.where}: {key}")

    def text(self, key: str) -> str:
        value = self._present(key)
        if not isinstance(value, str) or not value.strip():
            raise PackError(f"{self.where}: {key} must be a non-empty text, not {shown(value)}.")
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
            raise PackError(f"{self.where} lacks the key {key!r}: write it, or fetch the pack again.")
        return self.data[key]


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> Any:
    """The parsed JSON of `path`. Raises PackError when absent, too large or malformed."""
    raw = read_text(path, limit)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise PackError(f"{path.name} in {path.parent} is not valid JSON ({error}): fetch the pack again.") from error


def read_yaml(path: Path, limit: int = MAX_YAML_BYTES) -> Any:
    """The parsed YAML of `path`, plain types only. Raises PackError when absent, too large or malformed."""
    import yaml

    raw = read_text(path, limit)
    try:
        return yaml.safe_load(raw)
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError, TypeError, AttributeError) as error:
        first = " ".join(str(error).split())
        raise PackError(f"{path.name} in {path.parent} is not valid YAML ({first}): correct it there.") from error


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
    text = repr(value) if isinstance(value, (str, int, float, bool)) or value is None else _kind(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
