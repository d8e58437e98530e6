"""Figures in texts: each stands between comments that name a JSON file and the place in it, so none can drift.

    <!-- figure docs/results/battery/figures.json#/packs/smollm2/exact/decode_tok_s/median .0f -->195<!-- /figure -->

The file is relative to the text's own folder, like a link. After `#` comes a JSON Pointer (RFC 6901): keys between
slashes, so that dots need no care (`/packs/nano/opt-0.25/to_plain/value`), with ~1 for a slash and ~0 for a tilde in a
key; a number picks from a list. The last word is a Python format, empty for the value as it is. Code, fenced or between
backticks, is left alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import ConfigurationError

_FIGURE = re.compile(
    r"<!-- figure (?P<file>[^\s#]+)#(?P<pointer>\S*)(?: (?P<format>\S+))? -->(?P<text>[^\n]*?)<!-- /figure -->"
)
_MARK = re.compile(r"<!-- /?figure\b")
_CODE = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)[^\n]*$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Bound:
    """One figure of a text: where it stands, what it says, and what the data say, or why they say nothing."""

    line: int
    place: str  # FILE#POINTER as written
    span: tuple[int, int]  # of the figure's own text
    text: str
    value: str | None
    problem: str | None

    @property
    def right(self) -> bool:
        return self.problem is None and self.text == self.value


def check_text(paths: Sequence[Path]) -> tuple[int, list[str]]:
    """How many figures there are, and a sentence with file:line for each that is not what the data say."""
    count, wrong = 0, []
    for path in paths:
        text = _read(path)
        found = figures(text, path.parent)
        count += len(found)
        for one in found:
            if one.problem is not None:
                wrong.append(f"{path}:{one.line}: {one.place}: {one.problem}")
            elif not one.right:
                wrong.append(f"{path}:{one.line}: {one.place} is {one.value}, and the text says {one.text}")
        wrong += [f"{path}:{line}: a figure's comment that has no other half" for line in _stray(text)]
    return count, wrong


def write_text(paths: Sequence[Path]) -> list[str]:
    """Puts the data's figures into the texts. Returns a sentence for each that changed, and raises for one that cannot.

    Raises ConfigurationError before anything is written.
    """
    changed, texts = [], {}
    for path in paths:
        text = _read(path)
        found = figures(text, path.parent)
        broken = [f"{path}:{one.line}: {one.place}: {one.problem}" for one in found if one.problem is not None]
        broken += [f"{path}:{line}: a figure's comment that has no other half" for line in _stray(text)]
        if broken:
            raise ConfigurationError(broken[0])
        for one in reversed([one for one in found if not one.right]):
            changed.append(f"{path}:{one.line}: {one.text} became {one.value}")
            text = text[: one.span[0]] + str(one.value) + text[one.span[1] :]
            texts[path] = text
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return sorted(changed)


def figures(text: str, folder: Path) -> list[Bound]:
    """Every bound figure of a text in its order; files are read once."""
    read = cache(lambda name: json.loads((folder / name).read_text(encoding="utf-8")))
    held = _without_code(text)
    return [_bound(text, found, read) for found in _FIGURE.finditer(held)]


def value_at(data: Any, pointer: str) -> Any:
    """What a JSON Pointer names. Raises KeyError with the step that leads nowhere."""
    if pointer and not pointer.startswith("/"):
        raise KeyError(pointer)
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(data, Mapping) and key in data:
            data = data[key]
        elif isinstance(data, list) and key.isdecimal() and int(key) < len(data):
            data = data[int(key)]
        else:
            raise KeyError(key)
    return data


def _bound(text: str, found: re.Match[str], read: Callable[[str], Any]) -> Bound:
    value, problem = None, None
    try:
        data = value_at(read(found["file"]), found["pointer"])
        if isinstance(data, dict | list) or data is None:
            problem = "that is no figure: name a number or a text in it"
        else:
            value = format(data, found["format"] or "")
    except OSError as error:
        problem = f"the file cannot be read ({error.strerror})"
    except KeyError as error:
        problem = f"there is no {error.args[0]!r}"
    except ValueError as error:
        problem = f"it cannot be read or written so ({error})"
    span = found.span("text")
    line = text.count("\n", 0, found.start()) + 1
    return Bound(line, f"{found['file']}#{found['pointer']}", span, text[span[0] : span[1]], value, problem)


def _stray(text: str) -> list[int]:
    """Lines with a figure's comment that is no part of a pair."""
    held = _without_code(text)
    paired = {at for found in _FIGURE.finditer(held) for at in (found.start(), found.end("text"))}
    return [held.count("\n", 0, one.start()) + 1 for one in _MARK.finditer(held) if one.start() not in paired]


def _without_code(text: str) -> str:
    """The text with code blanked out, every character in its place."""
    return _CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}): name a text.") from error
