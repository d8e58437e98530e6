"""What a person may have meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The closest known name, ignoring case; for dotted keys the last part alone may match. None = nothing is close."""
    by_folded = {candidate.lower(): candidate for candidate in known}
    match = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.6)
    if match:
        return by_folded[match[0]]
    by_tail = {folded.rpartition(".")[2]: candidate for folded, candidate in reversed(by_folded.items())}
    match = difflib.get_close_matches(name.lower().rpartition(".")[2], by_tail, n=1, cutoff=0.75)
    return by_tail[match[0]] if match else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`, did you mean X?` or nothing: the end of a sentence."""
    found = nearest(name, known)
    return f", did you mean {found}?" if found else ""
