"""One window: a prompt decoded to a fixed length under one cell's generator, with everything that was observed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mtrun.runtime.measure.digest import ids_digest
from mtrun.runtime.measure.setting import sampling_of

if TYPE_CHECKING:
    from mtrun.runtime.generator import MtpGenerator
    from mtrun.runtime.packs.contract import Trunk

SCORE_ROWS = 256  # vocabulary rows held at a time while a text is scored
SCORE_TOKENS = 512  # tokens of a text that are read at a time while it is scored


def measure(generator: MtpGenerator, prompt: str, seed: int, tokens: int) -> dict[str, Any]:
    """The window of a user's turn in the pack's chat template: see `measure_ids`."""
    ids = generator.prepared.tokenizer.encode_chat([{"role": "user", "content": prompt}])
    return measure_ids(generator, ids, seed, tokens)


def measure_ids(generator: MtpGenerator, prompt_ids: Sequence[int], seed: int, tokens: int) -> dict[str, Any]:
    """Decodes exactly `tokens` tokens and returns the window as JSON types; times in seconds.

    Verdicts are reset first: a lane is engaged in this window only by code that ran in it. `prefilled` holds the prompt
    tokens read after each chunk: the first entry of a cold prefill is one chunk at most.
    """
    from mtrun.runtime.requests import Chunk, Finished, GenerationRequest, Prefill

    run, registry = generator.prepared, generator.registry
    request = GenerationRequest("bench", tuple(prompt_ids), sampling_of(run, seed), tokens, ignore_eos=True)
    registry.start_serving()
    ids: list[int] = []
    beats: list[float] = []
    sizes: list[int] = []
    prefilled: list[int] = []
    started, started_cpu = time.perf_counter(), time.process_time()
    decode_cpu = started_cpu
    finished: Finished | None = None
    for event in generator.run(request, lambda: False):
        if isinstance(event, Chunk):
            beats.append(time.perf_counter())
            ids += event.token_ids
            sizes.append(len(event.token_ids))
        elif isinstance(event, Prefill):
            decode_cpu = time.process_time()
            prefilled.append(event.done)
        elif isinstance(event, Finished):
            finished = event
    ended_cpu, ended = time.process_time(), time.perf_counter()
    assert finished is not None, "decoding ended without a Finished event"
    return {
        "prompt_ids": list(prompt_ids),
        "ids": ids,
        "digest": ids_digest(ids),
        "reason": finished.reason,
        "law": asdict(finished.law),
        "counts": asdict(finished.counts),
        "notes": list(finished.notes),
        "prefilled": prefilled,
        "prefill_seconds": finished.prefill_seconds,
        "ttft_seconds": beats[0] - started if beats else None,
        "decode_seconds": finished.decode_seconds,
        "decode_cpu_seconds": ended_cpu - decode_cpu,
        "wall_seconds": ended - started,
        "cpu_seconds": ended_cpu - started_cpu,
        "cycle_ms": percentiles([1e3 * (b - a) for a, b in itertools.pairwise(beats)]),
        "token_ms": percentiles(per_token_ms(beats, sizes)),
        "verdicts": {one.lane: [one.state.value, one.engaged_count] for one in registry.verdicts()},
    }


def score(generator: MtpGenerator, prompt_ids: Sequence[int], ids: Sequence[int]) -> float:
    """Mean of -log p(token) in nats over `ids`, p the trunk's own row: temperature 1, no filter, no lane's cache."""
    from mtrun.kernels.arrays import cast, logsumexp, pick

    assert generator.decoder is not None
    trunk = generator.decoder.parts.trunk
    xp = trunk.xp
    hidden = _hidden(trunk, [*prompt_ids, *ids[:-1]])[len(prompt_ids) - 1 :]  # [n, H]
    total = 0.0
    for start in range(0, len(ids), SCORE_ROWS):
        rows = cast(trunk.project(hidden[start : start + SCORE_ROWS]), xp.float32)  # [rows, V]
        chosen = xp.array(list(ids[start : start + SCORE_ROWS]), dtype=xp.int32)  # [rows]
        total -= float(xp.sum(pick(rows, chosen) - logsumexp(rows)[:, 0]))
    return total / len(ids)


def _hidden(trunk: Trunk, text: list[int]) -> Any:
    """[L, H] hidden states of a text, read in pieces, so that a long one needs no more room than its prefill did."""
    from mtrun.kernels.arrays import evaluate

    xp, caches = trunk.xp, trunk.new_caches()
    pieces = []
    for start in range(0, len(text), SCORE_TOKENS):
        piece = xp.array([text[start : start + SCORE_TOKENS]], dtype=xp.int32)
        pieces.append(trunk.forward(piece, caches, "none").hidden[0])
        evaluate(pieces[-1])
    return pieces[0] if len(pieces) == 1 else xp.concatenate(pieces)


def per_token_ms(beats: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """The time of each cycle spread over its tokens: milliseconds a token, from the seconds at which text was released
    and the tokens of each release. The first release ends the prefill and starts the clock."""
    cycles = zip(itertools.pairwise(beats), sizes[1:], strict=True) if beats else ()
    return [1e3 * (end - begin) / size for (begin, end), size in cycles for _ in range(size)]


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """p50, p95 and p99 of some times; None without any."""
    if not values:
        return None
    ranked = sorted(values)
    return {f"p{at}": ranked[min(len(ranked) - 1, at * len(ranked) // 100)] for at in (50, 95, 99)}
