"""Greedy MTP decoding against greedy plain decoding, token for token, on a real pack.

    python -m benchmarks.greedy_parity --tokens 300 [profile=turbo lanes.cpu_blas=false ...]

Drafters: the pack's own head, a perfect one (proposes what plain decoding will say), and an adversarial one (never the
next token). Exit code 0 when every run is equal. A run that differs is printed with the gap between the two likeliest
tokens where it left: with `cpu_blas` armed a verified row and a single row differ by rounding, so a tie may fall
either way.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

PROMPTS = Path(__file__).parent / "freeform.txt"
Propose = Callable[[list[int], int], list[int]]  # (tokens committed so far, depth) -> drafts


class PointDrafter:
    """Point-mass drafts by a function of the committed reply. Implements `runtime.decode.draft.Drafter`."""

    def __init__(self, propose: Propose, prompt: int, xp: Any) -> None:
        self.propose, self.skip, self.text, self.xp = propose, prompt - 1, [], xp
        self.source, self.max_depth = "head", 8

    def observe(self, pairs: Any) -> None:
        self.text += pairs.tokens

    def catch_up(self) -> None:
        pass

    def draft(self, depth: int, how: Any, adjust: Any, uniforms: Any) -> Any:
        from mtrun.kernels.draft import point_masses

        return point_masses(self.propose(self.text[self.skip :], depth), self.xp, "head")


@dataclass(frozen=True)
class Run:
    """One decoding of one prompt."""

    tokens: list[int]
    accepted: int
    drafted: int


def decode(generator: Any, prompt: Sequence[int], count: int, depth: int, propose: Propose | None) -> Run:
    """Greedy decoding of exactly `count` tokens; `propose` replaces the pack's head."""
    from mtrun.runtime.decode.decoder import Decoder
    from mtrun.runtime.requests import Chunk, Finished, GenerationRequest, Sampling

    request = GenerationRequest("parity", tuple(prompt), Sampling(temperature=0.0), count, ignore_eos=True, depth=depth)
    decoder: Decoder = generator.decoder
    if propose is not None:
        parts = replace(decoder.parts)
        parts.drafter = lambda: PointDrafter(propose, len(prompt), parts.trunk.xp)  # type: ignore[method-assign]
        decoder = Decoder(parts, decoder.settings, generator.prepared.tokenizer.stream)
    tokens: list[int] = []
    for event in decoder.run(request, lambda: False):
        if isinstance(event, Chunk):
            tokens += event.token_ids
        elif isinstance(event, Finished):
            return Run(tokens, event.counts.accepted, event.counts.drafted)
    raise RuntimeError("decoding ended without a Finished event")


def perfect(reply: list[int]) -> Propose:
    """Proposes the reply itself; past its end, token 0."""
    return lambda text, depth: (reply[len(text) :] + [0] * depth)[:depth]


def adversarial(reply: list[int], vocab: int) -> Propose:
    """Proposes the neighbour of every next token, so that none is ever right."""
    return lambda text, depth: [(token + 1) % vocab for token in perfect(reply)(text, depth)]


def compare(reference: list[int], found: list[int], generator: Any, prompt: Sequence[int]) -> str:
    """Empty when equal; otherwise where they part and how near the two likeliest tokens were there."""
    if reference == found:
        return ""
    at = next(i for i, (a, b) in enumerate(zip(reference, found, strict=True)) if a != b)
    import mlx.core as mx

    trunk = generator.decoder.parts.trunk
    ids = mx.array([[*prompt, *reference[:at]]], dtype=mx.int32)
    row = mx.sort(trunk.forward(ids, trunk.new_caches(), "last").logits[0])
    return f"differs at token {at}: the two likeliest logits are {float(row[-1] - row[-2]):.1e} apart"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--drafters", nargs="+", default=["head", "perfect", "adversarial"])
    parser.add_argument("--overrides", nargs="+", default=[], metavar="KEY=VALUE")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    from mtrun.runtime import compose
    from mtrun.runtime.generator import MtpGenerator
    from mtrun.runtime.preparation import prepare

    generator = MtpGenerator(prepare(compose([f"draft.depth={max(given.depths)}", *given.overrides])))
    generator.load()
    tokenizer, vocab = generator.prepared.tokenizer, generator.prepared.pack.vocab_size
    texts = [line for line in PROMPTS.read_text().splitlines() if line.strip()][: given.prompts]
    equal = runs = 0
    for number, text in enumerate(texts):
        prompt = tokenizer.encode_chat([{"role": "user", "content": text}])
        plain = decode(generator, prompt, given.tokens, 0, None).tokens
        scripts = {"head": None, "perfect": perfect(plain), "adversarial": adversarial(plain, vocab)}
        for name in given.drafters:
            for depth in given.depths:
                started = time.monotonic()
                run = decode(generator, prompt, given.tokens, depth, scripts[name])
                difference = compare(plain, run.tokens, generator, prompt)
                equal, runs = equal + (not difference), runs + 1
                share = run.accepted / max(run.drafted, 1)
                print(
                    f"prompt {number} {name:<11} depth {depth}: {difference or 'equal'}, "
                    f"draft_acceptance={share:.3f}, {time.monotonic() - started:.0f} s",
                    flush=True,
                )
    print(f"{equal} of {runs} runs equal plain decoding over {given.tokens} tokens each")
    return 0 if equal == runs else 1


if __name__ == "__main__":
    sys.exit(main())
