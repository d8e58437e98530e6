"""Token ids in, text out, while both are still growing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

_PARTIAL = "\ufffd"  # what a decoder writes for bytes that are not a whole UTF-8 character (yet)


class TextStream:
    """Releases text as soon as no later token can change it. All pushes and the flush add up to decode(all ids).

    `decode` must be a tokenizer's: decoding a prefix of the ids gives a prefix of the text, but for trailing bytes of
    an open character. Those are held back until the character is whole or can no longer become so. `byte_ids` are the
    tokenizer's byte-fallback tokens, if it has such: one bad byte spoils its whole run, so a run is held to its end.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], byte_ids: Collection[int] = frozenset()) -> None:
        self._decode = decode
        self._byte_ids = byte_ids
        self._in_run = False  # the last visible token was a byte
        self._ids: list[int] = []  # the ids that the next ones are decoded together with
        self._context = 0  # how many of them were released whole the last time
        self._released = 0  # characters of decode(self._ids) already released

    def push(self, token_id: int) -> str:
        """The text that became certain with this token, often one word, "" while a character is open."""
        self._ids.append(token_id)
        if self._byte_ids and self._run_goes_on(token_id):
            return ""
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
        self._ids, self._context, self._released, self._in_run = [], 0, 0, False
        return out

    def _run_goes_on(self, token_id: int) -> bool:
        if token_id in self._byte_ids:
            self._in_run = True
        elif self._in_run and self._decode([token_id]):  # a token without text, such as a special one, ends no run
            self._in_run = False
        return self._in_run

    def _forget(self) -> None:
        """Keep only the ids of the last release as context (decoders treat a first token apart), so cost stays flat."""
        self._ids = self._ids[self._context :]
        self._context = len(self._ids)
        self._released = len(self._decode(self._ids))
