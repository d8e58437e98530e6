"""From Metal text to the C++ that `metal_stdlib` and the scheduler understand. Line numbers stay."""

from __future__ import annotations

import re
from itertools import count

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
ARRAY = re.compile(r"\bthreadgroup\s+(\w+)\s+(\w+)\s*\[([^\]]+)\]\s*;")
POINTER = re.compile(r"(?:\bconst\s+)?\b(device|constant|threadgroup)\s+(const\s+)?(\w+)\s*(const\s*)?\*")
LOCAL = re.compile(r"\bthread\s+(?=(?:const\s+)?\w+\s*[*&])")


def without_comments(text: str) -> str:
    """The text with every comment blanked, line for line."""
    return COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _pointer(match: re.Match[str]) -> str:
    constant = match[0].lstrip().startswith("const ") or match[2] or match[4] or match[1] == "constant"
    return f"emu::Pointer<{'const ' if constant else ''}{match[3]}, emu::{match[1].capitalize()}>"


def translate(text: str) -> str:
    """Metal as C++: threadgroup arrays become one block of the whole group, pointers know their address space."""
    number = count()

    def array(match: re.Match[str]) -> str:
        kind, name, size = match.groups()
        return f'const auto {name} = emu::threadgroup_array<{kind}>({size}, "{name}", {next(number)});'

    return LOCAL.sub("", POINTER.sub(_pointer, ARRAY.sub(array, without_comments(text))))
