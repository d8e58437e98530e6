"""A chat template seen from the model's side: where a user's words begin and end, and what stands between two turns.

Templates are programs, so all is found by rendering: a mark stands for words that are not known yet.
"""

from __future__ import annotations

from mtrun.runtime.errors import ConfigurationError, RequestError
from mtrun.runtime.packs.tokenizer import PackTokenizer

_MARK = "qzmark7qz"  # survives trimming, and no template looks for it
_OTHER = "qzother7qz"


class Dialogue:
    """Token ids around the turns of a chat. `pack` names the pack in messages."""

    def __init__(self, tokenizer: PackTokenizer, pack: str) -> None:
        self._tokenizer, self._pack = tokenizer, pack

    def asked(self, words: str) -> list[int]:
        """Ids of a chat whose only turn is the user's `words`, ready for the answer."""
        return list(self._tokenizer.encode_chat([_user(words)]))

    def opened(self) -> list[int]:
        """Ids up to where the first user's words begin. Raises ConfigurationError."""
        return self._encode(self._around(self._render(_user(_MARK), prompt=False), _MARK)[0])

    def closing(self) -> str:
        """The text that follows a user's words, "" where nothing does. Raises ConfigurationError."""
        return self._around(self._render(_user(_MARK), prompt=False), _MARK)[1].strip()

    def between(self, words: str | None) -> list[int]:
        """Ids from the end of an answer to the next one's begin, the second user's `words` among them.

        None = up to where those words begin. Raises ConfigurationError for a template that shows no earlier turns.
        """
        before = self._render(_user(_OTHER), prompt=True)
        history = [_user(_OTHER), {"role": "assistant", "content": _MARK}]
        whole = self._render(*history, _user(_OTHER if words is None else words), prompt=words is not None)
        if not whole.startswith(before + _MARK):
            raise ConfigurationError(
                f"the chat template of {self._pack} does not keep earlier turns as they were: leave out --second-turns."
            )
        tail = whole[len(before + _MARK) :]
        return self._encode(tail if words is not None else self._around(tail, _OTHER)[0])

    def _render(self, *messages: dict[str, str], prompt: bool) -> str:
        try:
            return self._tokenizer.render_chat(messages, add_generation_prompt=prompt)
        except RequestError as error:
            raise ConfigurationError(f"the chats of {self._pack} cannot be rendered: {error}") from error

    def _around(self, text: str, mark: str) -> tuple[str, str]:
        before, found, after = text.partition(mark)
        if not found or mark in after:
            raise ConfigurationError(
                f"the chat template of {self._pack} does not show a user's words once: leave out --self-turns."
            )
        return before, after

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _user(words: str) -> dict[str, str]:
    return {"role": "user", "content": words}
