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

SCORE_ROWS = 256  # vocabulary rows held at a time while a text is scored


def measure(generator: MtpGenerator, prompt: str, seed: int, tokens: int) -> dict[str, Any]:
    """Decodes exactly `tokens` tokens and returns the window as JSON types; times in seconds.

    Verdicts are reset first: a lane is engaged in this window only by code that ran in it.
    """
    from mtrun.runtime.requests import Chunk, Finished, GenerationRequest, Prefill

    run, registry = generator.prepared, generator.registry
    prompt_ids = tuple(run.tokenizer.encode_chat([{"role": "user", "content": prompt}]))
    request = GenerationRequest("bench", prompt_ids, sampling_of(run, seed), tokens, ignore_eos=True)
    registry.start_serving()
    ids: list[int] = []
    beats: list[float] = []
    started, started_cpu = time.perf_counter(), time.process_time()
    decode_cpu = started_cpu
    finished: Finished | None = None
    for event in generator.run(request, lambda: False):
        if isinstance(event, Chunk):
            ids += event.token_ids
            beats.append(time.perf_counter())
        elif isinstance(event, Prefill):
            decode_cpu = time.process_time()
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
        "prefill_seconds": finished.prefill_seconds,
        "decode_seconds": finished.decode_seconds,
        "decode_cpu_seconds": ended_cpu - decode_cpu,
        "wall_seconds": ended - started,
        "cpu_seconds": ended_cpu - started_cpu,
        "cycle_ms": _percentiles([1e3 * (b - a) for a, b in itertools.pairwise(beats)]),
        "verdicts": {one.lane: [one.state.value, one.engaged_count] for one in registry.verdicts()},
    }


def score(generator: MtpGenerator, prompt_ids: Sequence[int], ids: Sequence[int]) -> float:
    """Mean of -log p(token) in nats over `ids`, p the trunk's own row: temperature 1, no filter, no lane's cache."""
    from mtrun.kernels.arrays import cast, logsumexp, pick

    assert generator.decoder is not None
    trunk = generator.decoder.parts.trunk
    xp = trunk.xp
    text = xp.array([[*prompt_ids, *ids[:-1]]], dtype=xp.int32)  # [1, P + n - 1]
    hidden = trunk.forward(text, trunk.new_caches(), "none").hidden[0, len(prompt_ids) - 1 :]  # [n, H]
    total = 0.0
    for start in range(0, len(ids), SCORE_ROWS):
        rows = cast(trunk.project(hidden[start : start + SCORE_ROWS]), xp.float32)  # [rows, V]
        chosen = xp.array(list(ids[start : start + SCORE_ROWS]), dtype=xp.int32)  # [rows]
        total -= float(xp.sum(pick(rows, chosen) - logsumexp(rows)[:, 0]))
    return total / len(ids)


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """p50, p95 and p99 of the times between two releases of text."""
    if not values:
        return None
    ranked = sorted(values)
    return {f"p{at}": ranked[min(len(ranked) - 1, at * len(ranked) // 100)] for at in (50, 95, 99)}
