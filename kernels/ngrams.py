"""An index of the n-grams of a text that grows: where the last few tokens occurred before, and what followed.

Source of drafting from it: Saxena, "Prompt Lookup Decoding" (2023).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class NgramIndex:
    """Most recent earlier occurrence of the text's last n tokens, for every n in `longest..shortest`.

    Work and memory a token are constant: one lookup and one entry for each n.
    """

    def __init__(self, longest: int, shortest: int) -> None:
        """longest >= shortest >= 1."""
        self.text: list[int] = []
        self._after: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in range(longest, shortest - 1, -1)}
        self._found: int | None = None  # where the continuation of the longest match begins in `text`

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens to the text."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        self.text.append(token)
        self._found, end = None, len(self.text)
        for n, after in self._after.items():  # longest first
            if n > end:
                continue
            gram = tuple(self.text[-n:])
            if self._found is None:
                self._found = after.get(gram)
            after[gram] = end

    @property
    def matched(self) -> bool:
        """Whether the last tokens occurred before."""
        return self._found is not None

    def continuation(self, count: int) -> list[int]:
        """[count] tokens that followed the most recent earlier occurrence of the longest match; [] without one.

        Where the earlier text ends, the continuation goes on with itself, as a text that repeats would.
        """
        if self._found is None:
            return []
        out: list[int] = []
        for place in range(self._found, self._found + count):
            beyond = place - len(self.text)
            out.append(self.text[place] if beyond < 0 else out[beyond])
        return out


def naive_continuation(text: Sequence[int], longest: int, shortest: int, count: int) -> list[int]:
    """What `NgramIndex` says of a whole text, by searching it backwards: for proofs and tests."""
    for n in range(min(longest, len(text)), shortest - 1, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if list(text[start : start + n]) == list(text[len(text) - n :]):
                long = list(text)
                for place in range(start + n, start + n + count):
                    long.append(long[place])
                return long[len(text) :]
    return []
