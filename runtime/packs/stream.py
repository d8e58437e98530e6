"""Token ids in, text out, while both are still growing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_PARTIAL = "\ufffd"  # what a decoder writes for bytes that are not a whole UTF-8 character (yet)


class TextStream:
    """Releases text as soon as no later token can change it. All pushes and the flush add up to decode(all ids).

    `decode` must be a tokenizer's: decoding a prefix of the ids gives a prefix of the text, but for trailing bytes of
    an open character. Those are held back until the character is whole or can no longer become so.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []  # the ids that the next ones are decoded together with
        self._context = 0  # how many of them were released whole the last time
        self._released = 0  # characters of decode(self._ids) already released

    def push(self, token_id: int) -> str:
        """The text that became certain with this token, often one word, "" while a character is open."""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        certain = len(text.rstrip(_PARTIAL))
        if certain <= self._released:
            return ""
        out, self._released = text[self._released : certain], certain
        if certain == len(text):
            self._forget()
        return out

    def flush(self) -> str:
        """What is still held at the end of the reply: open characters as U+FFFD."""
        text = self._decode(self._ids) if self._ids else ""
        out = text[self._released :]
        self._ids, self._context, self._released = [], 0, 0
        return out

    def _forget(self) -> None:
        """Keep only the ids of the last release as context (decoders treat a first token apart), so cost stays flat."""
        self._ids = self._ids[self._context :]
        self._context = len(self._ids)
        self._released = len(self._decode(self._ids))
