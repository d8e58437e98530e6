"""From tokens to released text: the earliest of stop string, EOS and max_tokens ends a reply, even inside one cycle.

Text that could still become a stop string or an unfinished UTF-8 character is held back and never taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mtrun.runtime.requests import FinishReason


class TextStream(Protocol):
    """Incremental detokeniser: `push` returns text that no later token can change, `flush` the rest."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


@dataclass(frozen=True)
class Released:
    """What a run of tokens came to: the tokens that count, the text that may be shown, and whether that was the end."""

    tokens: tuple[int, ...]
    text: str
    finish: FinishReason | None


class Output:
    """The reply of one request as it grows."""

    def __init__(
        self,
        stream: TextStream,
        *,
        stop: Sequence[str],
        eos: Iterable[int],
        max_tokens: int | None,
    ) -> None:
        self._stream = stream
        self._stop = tuple(stop)
        self._eos = frozenset(eos)
        self._max_tokens = max_tokens
        self._held = ""  # stable text that is not released yet
        self.count = 0  # tokens that count so far

    def push(self, tokens: Sequence[int]) -> Released:
        """Takes the tokens of one cycle in order. EOS is neither counted nor shown; the token that completes a stop
        string is counted; whatever follows the end is dropped."""
        taken: list[int] = []
        text = ""
        for token in tokens:
            if token in self._eos:
                return self._end(taken, text, "stop")
            taken.append(token)
            self.count += 1
            self._held += self._stream.push(token)
            cut = self._first_stop()
            if cut is not None:
                released = text + self._held[:cut]
                self._held = ""
                return Released(tuple(taken), released, "stop")
            text += self._release()
            if self._max_tokens is not None and self.count >= self._max_tokens:
                return self._end(taken, text, "length")
        return Released(tuple(taken), text, None)

    def close(self) -> str:
        """The text still held back, for a reply that ends from outside (context limit, cancellation)."""
        return self._end([], "", "length").text

    def _end(self, taken: list[int], text: str, reason: FinishReason) -> Released:
        self._held += self._stream.flush()
        cut = self._first_stop()
        tail, self._held = self._held[:cut], ""
        return Released(tuple(taken), text + tail, "stop" if cut is not None else reason)

    def _first_stop(self) -> int | None:
        """Where the earliest stop string begins in the held text. Nothing released can be part of one."""
        found = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        return min(found, default=None)

    def _release(self) -> str:
        """Moves out all but the longest tail that a stop string may begin with."""
        keep = max((overlap(self._held, stop) for stop in self._stop), default=0)
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out


def overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of stop that text ends with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


StreamFactory = Callable[[], TextStream]
