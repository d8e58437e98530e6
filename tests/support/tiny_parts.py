"""Engine parts of a tiny random llama, and drafters with a known character, for decode tests without a server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_unflatten

from mtrun.kernels.rows import Rows, accumulator
from mtrun.lanes.catalogue import load
from mtrun.lanes.contract import Decision, Evidence, Installed, PackEvidence
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


def decoder(
    parts: Parts, depth: int = 3, context: int = 512, chunk: int = 64, eos=frozenset(), stream=Letters, **draft
) -> Decoder:
    """`draft` are the draft_* fields of DecodeSettings."""
    settings = DecodeSettings(depth=depth, prefill_chunk=chunk, context_limit=context, eos=frozenset(eos), **draft)
    return Decoder(parts, settings, stream)


def request(
    prompt, *, max_tokens=32, depth=None, stop=(), top_logprobs=None, ignore_eos=False, **sampling
) -> GenerationRequest:
    how = Sampling(**{"temperature": 1.0, "seed": 1, **sampling})
    return GenerationRequest(
        "test",
        tuple(prompt),
        how,
        max_tokens=max_tokens,
        stop=tuple(stop),
        top_logprobs=top_logprobs,
        ignore_eos=ignore_eos,
        depth=depth,
    )


def events(decoder: Decoder, asked: GenerationRequest) -> list[Event]:
    return list(decoder.run(asked, lambda: False))


def tokens(made: list[Event]) -> list[int]:
    return [token for event in made if isinstance(event, Chunk) for token in event.token_ids]


def text(made: list[Event]) -> str:
    return "".join(event.text for event in made if isinstance(event, Chunk))


def finished(made: list[Event]) -> Finished:
    assert isinstance(made[-1], Finished)
    return made[-1]


class ScriptedDrafter:
    """Point-mass drafts chosen by a function of (text so far, depth): a perfect or an adversarial drafter."""

    source, max_depth = "head", 8

    def __init__(self, propose) -> None:
        self.propose = propose
        self.text: list[int] = []

    def observe(self, pairs: Pairs) -> None:
        self.text += pairs.tokens

    def catch_up(self) -> None:
        pass

    def draft(self, depth, how, adjust, uniforms) -> Drafted:
        ids = mx.array(self.propose(self.text, depth), dtype=mx.int32)
        return Drafted(ids, Rows(ids[:, None], mx.ones((depth, 1), dtype=accumulator())))


def with_drafter(parts: Parts, propose) -> Parts:
    """The same engine with scripted drafts; the parts given stay as they are."""
    changed = replace(parts)
    changed.drafter = lambda: ScriptedDrafter(propose)  # type: ignore[method-assign]
    return changed


def perfect(prompt, reply):
    """Proposes the known reply. `reply` reaches at least one depth past the tokens asked for."""

    def propose(text, depth):
        done = len(text) - (len(prompt) - 1)  # observed pairs begin with the second prompt token
        return reply[done : done + depth]

    return propose


def adversarial(prompt, reply, vocab):
    """Proposes the neighbour of what the reply says: never the argmax."""
    right = perfect(prompt, reply)
    return lambda text, depth: [(token + 1) % vocab for token in right(text, depth)]


def noisy(prompt, reply, vocab, share=0.7):
    """Each draft is right with probability `share`, so that cycles end at every depth."""
    right = perfect(prompt, reply)

    def propose(text, depth):
        hits = np.random.default_rng(len(text)).random(depth) < share
        return [token if hit else (token + 1) % vocab for token, hit in zip(right(text, depth), hits, strict=True)]

    return propose


def tiny_evidence(parts: Parts, *, law="exact", depth=3, **pack) -> Evidence:
    """What the auto-arm would say of such a pack; keywords replace fields of the pack's part."""
    seen = {
        "name": "tiny",
        "family": "llama",
        "hidden_size": parts.trunk.hidden_size,
        "vocab_size": parts.trunk.vocab_size,
        "layers": 2,
        "quantized_bits": None,
        "head": Decision(True, "present", "The head fits the trunk."),
        "draft_vocab_size": None if parts.draft_ids is None else parts.draft_ids.size,
        "trimmable_cache": True,
        "head_dim": 32,
        **pack,
    }
    return Evidence("Linux", "x86_64", "cpu", True, None, False, None, 1, law, depth, PackEvidence(**seen))


def install(parts: Parts, *names: str, **evidence) -> dict[str, Installed]:
    """Installs engine lanes by name, in the order given."""
    seen = tiny_evidence(parts, **evidence)
    lanes = load(names)
    return {name: lanes[name].install(parts, seen) for name in names}
