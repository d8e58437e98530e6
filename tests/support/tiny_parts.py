"""Engine parts of a tiny random llama, and drafters with a known character, for decode tests without a server."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_unflatten

from mtrun.kernels.rows import Rows, accumulator
from mtrun.runtime.acceptance.exact import ExactLaw
from mtrun.runtime.decode.decoder import Decoder, DecodeSettings
from mtrun.runtime.decode.draft import Drafted, Pairs
from mtrun.runtime.packs.llama import LlamaTrunk, build_head
from mtrun.runtime.parts import Parts, stock_parts
from mtrun.runtime.requests import Chunk, Event, Finished, GenerationRequest, Sampling
from support.tiny_pack import write_tiny_pack


def tiny_parts(folder: Path, law=None, **options) -> Parts:
    """Stock parts of a freshly written tiny pack; options as for `write_tiny_pack`."""
    write_tiny_pack(folder, **options)
    config = json.loads((folder / "config.json").read_text())
    trunk = LlamaTrunk(config)
    trunk.load(mx.load(str(folder / "model.safetensors")))
    weights = mx.load(str(folder / "mtp.safetensors"))
    ids = weights.pop("draft_ids", None)
    head = build_head(config)
    head.update(tree_unflatten(list(weights.items())))
    mx.eval(head.parameters())
    return stock_parts(trunk, head, ids, law or ExactLaw())


class Letters:
    """A text stream that shows token ids as numbers: no tokenizer needed to test the loop."""

    def push(self, token_id: int) -> str:
        return f"{token_id} "

    def flush(self) -> str:
        return ""


def decoder(parts: Parts, depth: int = 3, context: int = 512, chunk: int = 64, eos=frozenset()) -> Decoder:
    settings = DecodeSettings(depth=depth, prefill_chunk=chunk, context_limit=context, eos=frozenset(eos))
    return Decoder(parts, settings, Letters)


def request(prompt, *, max_tokens=32, depth=None, **sampling) -> GenerationRequest:
    how = Sampling(**{"temperature": 1.0, "seed": 1, **sampling})
    return GenerationRequest("test", tuple(prompt), how, max_tokens=max_tokens, depth=depth)


def events(decoder: Decoder, asked: GenerationRequest) -> list[Event]:
    return list(decoder.run(asked, lambda: False))


def tokens(made: list[Event]) -> list[int]:
    return [token for event in made if isinstance(event, Chunk) for token in event.token_ids]


def finished(made: list[Event]) -> Finished:
    assert isinstance(made[-1], Finished)
    return made[-1]


class ScriptedDrafter:
    """Point-mass drafts chosen by a function of (text so far, depth): a perfect or an adversarial drafter."""

    def __init__(self, propose) -> None:
        self.propose = propose
        self.text: list[int] = []

    def observe(self, pairs: Pairs) -> None:
        self.text += pairs.tokens

    def draft(self, depth, how, adjust, uniforms) -> Drafted:
        ids = mx.array(self.propose(self.text, depth), dtype=mx.int32)
        return Drafted(ids, Rows(ids[:, None], mx.ones((depth, 1), dtype=accumulator())))
