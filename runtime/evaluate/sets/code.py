"""The program in an answer: a function in a code block, a function among words, or the rest of a prompt."""

from __future__ import annotations

import re

_BLOCK = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_OPENS = re.compile(r"(?:def|class|import|from|async def) |@")  # a line that only code begins with
_GOES_ON = re.compile(r"[ \t#)\]}]|$|(?:def|class|import|from|async def) |@|\w+ *=[^=]")


def program(prompt: str, entry: str, text: str) -> str:
    """What runs for the answer `text` to `prompt`, which ends inside function `entry`.

    Where the answer defines `entry`, it stands behind what the prompt says before it (imports, helpers); else the
    answer is the rest of the prompt. Code is taken from the first block that defines the function, then from among the
    words.
    """
    blocks = [found.group(1) for found in _BLOCK.finditer(text)]
    for code in (*blocks, _among_words(text)):
        if _defines(code, entry):
            return f"{_before(prompt, entry)}\n{code}"
    return prompt + (blocks[0] if blocks else text)


def _defines(code: str, entry: str) -> re.Match[str] | None:
    return re.search(rf"^(?:async )?def +{re.escape(entry)} *\(", code, re.MULTILINE)


def _before(prompt: str, entry: str) -> str:
    found = _defines(prompt, entry)
    return prompt[: found.start()] if found else ""


def _among_words(text: str) -> str:
    """The lines from the first that only code begins with, up to the first that is no code any more."""
    lines = text.split("\n")
    start = next((place for place, line in enumerate(lines) if _OPENS.match(line)), len(lines))
    end = next((place for place in range(start, len(lines)) if not _GOES_ON.match(lines[place])), len(lines))
    return "\n".join(lines[start:end])
