"""A pack's tokenizer: text to ids and back, and chats to prompts, without importing transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.chat import read_chat_template
from mtrun.runtime.packs.fields import one_line, shown
from mtrun.runtime.packs.members import CONFIG, TOKENIZER, member
from mtrun.runtime.packs.reader import read_config, read_eos_ids
from mtrun.runtime.packs.stream import TextStream

MAX_BYTES = 64 * 2**20  # tokenizer.json of a 256k vocabulary is about 35 MB
_BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))  # how SentencePiece vocabularies spell single bytes


class PackTokenizer:
    """Reads tokenizer.json, the chat template and the end-of-sequence ids of the pack in `folder`."""

    eos_ids: tuple[int, ...]  # a reply ends with any of them
    vocab_size: int  # ids that the tokenizer can make: largest id + 1, never above the model's

    def __init__(self, folder: Path) -> None:
        """Raises PackError when a file is absent or malformed or the vocabulary is larger than the model's."""
        config = read_config(folder)
        self._tokenizer = _read_tokenizer(member(folder, TOKENIZER, "tokenizer"))
        self._chat = read_chat_template(folder)
        self.eos_ids = read_eos_ids(folder, config)
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = 1 + max(vocabulary.values(), default=-1)
        self._byte_ids = frozenset(vocabulary[name] for name in _BYTE_TOKENS if name in vocabulary)
        limit = config.get("vocab_size")
        if type(limit) is not int or not 0 < self.vocab_size <= limit:
            raise PackError(
                f"{TOKENIZER} in {folder} has {self.vocab_size} ids and {CONFIG} says vocab_size {shown(limit)}: they "
                "belong to different models."
            )
        if len(set(vocabulary.values())) != len(vocabulary):
            raise PackError(f"{TOKENIZER} in {folder} gives two tokens one id: fetch the pack again.")
        if any(one >= limit for one in self.eos_ids):
            largest = max(self.eos_ids)
            raise PackError(f"the end-of-sequence id {largest} of {folder} exceeds vocab_size {limit}: correct it.")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; special tokens written in it are recognised, and the tokenizer's own prefix is added."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`. Ids that the tokenizer does not have (a padded vocabulary) give no text."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Prompt text of a chat. Raises RequestError(field="messages") with the template's own words."""
        return self._chat.render(messages, tools, add_generation_prompt)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Ids of a chat's prompt. Special tokens written in a message are recognised, as Hugging Face does."""
        return self.encode(self.render_chat(messages, tools, add_generation_prompt), add_special_tokens=False)

    def stream(self) -> TextStream:
        """A new incremental decoder, one for each reply."""
        return TextStream(self.decode, self._byte_ids)


def _read_tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    if path.stat().st_size > MAX_BYTES:
        raise PackError(f"{path} is larger than {MAX_BYTES:,} bytes and is not read.")
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()  # training leftovers that would cut or fill prompts in silence
        tokenizer.no_padding()
        tokenizer.encode("a")
    except BaseException as error:  # bare Exception for malformed files; its panics are no Exception at all
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise PackError(f"{path} is not a tokenizer ({one_line(error)}): fetch the pack again.") from error
    return tokenizer
