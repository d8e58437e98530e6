"""The tokenizer of `nano`: byte-level BPE learnt on the generators' output, digits single, and its chat template."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mtrun.runtime.forge.tasks import catalogue
from mtrun.runtime.packs.members import CHAT_TEMPLATE, GENERATION, TOKENIZER, TOKENIZER_CONFIG

END, USER, ASSISTANT = "<|end|>", "<|user|>", "<|assistant|>"
SPECIAL = (END, USER, ASSISTANT)
SAMPLER = {"temperature": 1.0, "top_p": 0.95, "top_k": 20}
_TASKS = 1500  # of each family
# A word with the space before it, one digit, signs with their spaces, or white space.
_PIECES = r" ?[A-Za-z_]+|[0-9]| ?[^\sA-Za-z0-9_]+ ?|\s+"
# nano was trained on single questions: of a longer chat it is shown the last one, and no system text.
TEMPLATE = (
    "{%- for message in messages if message['role'] == 'user' -%}{%- if loop.last -%}"
    "<|user|>{{ message['content'] }}<|end|>{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)


def train_tokenizer(vocab: int, seed: int) -> Any:
    """A `tokenizers.Tokenizer` of at most `vocab` ids; equal arguments give equal files."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=3,
    )
    tokenizer.train_from_iterator(_texts(seed), trainer)
    return tokenizer


def _texts(seed: int) -> Iterator[str]:
    rng = random.Random(f"nano tokenizer {seed}")
    for name, family in catalogue.FAMILIES.items():
        for i in range(_TASKS):
            task = catalogue.draw(rng, name, i % family.levels)
            yield task.prompt
            yield task.answer


def write_tokenizer(folder: Path, tokenizer: Any) -> None:
    """tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json in `folder`."""
    tokenizer.save(str(folder / TOKENIZER))
    eos = tokenizer.token_to_id(END)
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END}
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    (folder / CHAT_TEMPLATE).write_text(TEMPLATE + "\n", encoding="utf-8")
    generation = {"do_sample": True, "eos_token_id": eos, "pad_token_id": eos, **SAMPLER}
    (folder / GENERATION).write_text(json.dumps(generation, indent=1) + "\n", encoding="utf-8")


def prompt_text(prompt: str) -> str:
    """What the chat template makes of one question."""
    return f"{USER}{prompt}{END}{ASSISTANT}"


def encode_task(tokenizer: Any, prompt: str, answer: str) -> tuple[list[int], int]:
    """(ids of the whole chat, how many of them are the prompt)."""
    asked = tokenizer.encode(prompt_text(prompt), add_special_tokens=False).ids
    said = tokenizer.encode(answer + END, add_special_tokens=False).ids
    return asked + said, len(asked)
