"""What the emulator's C++ would let pass and Metal would not, found in the text."""

from __future__ import annotations

import re

from support.metal_emulator.translate import without_comments

TYPES = r"(?:float|half|bfloat16_t|bfloat|int|uint|short|ushort|char|uchar|long|ulong|bool|atomic_uint|T)"
SPACES = ("device", "threadgroup", "constant", "thread")
# A type, then * or &, then a name that is declared: `float* row = `, `device T& out,`, `float *x)`.
DECLARED = re.compile(rf"((?:\b\w+\s+)*)\b{TYPES}\s*(?:const\s*)?[*&]\s*(?:const\s+)?(\w+)\s*(?=[=,;)\[])")
SHARED = re.compile(r"\bthreadgroup\s+(?:const\s+)?\w+\s+(\w+)\s*(?:\[[^\]]*\]\s*)*([;={])")
FOREIGN = re.compile(r"\bstd::|\bdouble\b|\bnew\b|\bthrow\b|\btry\b|\bmalloc\b|\bemu::|\[\s*[&=]\s*\]")


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _pointers(text: str, part: str) -> list[str]:
    return [
        f"{part} line {_line(text, match.start(2))}: {match[2]} has no address space"
        for match in DECLARED.finditer(text)
        if not set(match[1].split()) & set(SPACES)
    ]


def _shared(text: str, part: str) -> list[str]:
    found = []
    for match in SHARED.finditer(text):
        line = f"{part} line {_line(text, match.start(1))}: threadgroup {match[1]}"
        if part == "header":
            found.append(f"{line} is declared outside the kernel")
        elif match[2] != ";":
            found.append(f"{line} cannot be initialised")
    return found


def lint(body: str, header: str = "") -> list[str]:
    """One sentence for every pointer without an address space, misplaced threadgroup array and word of plain C++."""
    found = []
    for part, text in (("header", without_comments(header)), ("body", without_comments(body))):
        found += _pointers(text, part) + _shared(text, part)
        found += [f"{part} line {_line(text, m.start())}: {m[0]} is not Metal" for m in FOREIGN.finditer(text)]
    return found
