"""One answer: a task decoded under a seed, with what was observed and the strict verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mtrun.runtime.errors import ConfigurationError, RequestError
from mtrun.runtime.evaluate.contract import Prompt, Task, TaskSet, judge
from mtrun.runtime.measure.digest import ids_digest
from mtrun.runtime.measure.setting import sampling_of

if TYPE_CHECKING:
    from mtrun.runtime.generator import MtpGenerator
    from mtrun.runtime.preparation import Preparation

_SEEDS_APART = 1_000_000  # more than a set has tasks
_WARM_UP = 8  # tokens


def request_seed(seed: int, index: int) -> int:
    """The seed of the request for the task at `index`: equal for every law, so that their draws are paired."""
    return seed * _SEEDS_APART + index


def prompt_ids(run: Preparation, tasks: Sequence[Task]) -> list[tuple[int, ...]]:
    """Every prompt in the pack's tokens. Raises ConfigurationError where one cannot be asked of this pack."""
    found: list[tuple[int, ...]] = []
    for task in tasks:
        try:
            ids = _encoded(run, task.prompt)
        except RequestError as error:
            raise ConfigurationError(f"task {task.id} cannot be asked of {run.pack.name}: {error}") from error
        if not 0 < len(ids) < run.context_limit:
            raise ConfigurationError(
                f"the prompt of task {task.id} has {len(ids)} tokens and the context limit is {run.context_limit}: "
                "choose another set or pack."
            )
        found.append(tuple(ids))
    return found


def warm_up(generator: MtpGenerator, ids: tuple[int, ...]) -> None:
    """A few tokens that nobody sees, so that the first answer is not charged for what runs once."""
    from mtrun.runtime.requests import GenerationRequest

    request = GenerationRequest("warm-up", ids, sampling_of(generator.prepared, 0), _WARM_UP, ignore_eos=True)
    for _ in generator.run(request, lambda: False):
        pass


def _encoded(run: Preparation, prompt: Prompt) -> list[int]:
    return run.tokenizer.encode(prompt) if isinstance(prompt, str) else run.tokenizer.encode_chat(prompt)


def answer(
    generator: MtpGenerator,
    asked: TaskSet,
    index: int,
    ids: tuple[int, ...],
    seed: int,
    max_tokens: int,
    cancelled: Callable[[], bool],
) -> dict[str, Any] | None:
    """The line of one answer as JSON types, times in seconds; None where it was cancelled. Scoring is not timed."""
    from mtrun.runtime.requests import Chunk, Finished, GenerationRequest

    task = asked.tasks[index]
    sampling = sampling_of(generator.prepared, request_seed(seed, index))
    request = GenerationRequest(f"eval-{task.id}-{seed}", ids, sampling, max_tokens, stop=asked.stop)
    text: list[str] = []
    made: list[int] = []
    finished: Finished | None = None
    started = time.perf_counter()
    for event in generator.run(request, cancelled):
        if isinstance(event, Chunk):
            text.append(event.text)
            made += event.token_ids
        elif isinstance(event, Finished):
            finished = event
    wall = time.perf_counter() - started
    assert finished is not None, "decoding ended without a Finished event"
    if finished.reason == "cancelled":
        return None
    truncated = finished.reason == "length" and not asked.excerpt
    verdict = judge(task, "".join(text), truncated)
    return {
        "task": task.id,
        "family": task.family,
        "seed": seed,
        "request_seed": request_seed(seed, index),
        "prompt_tokens": len(ids),
        "prompt_digest": ids_digest(ids),
        "text": "".join(text),
        "ids": made,
        "digest": ids_digest(made),
        "reason": finished.reason,
        "output_tokens": finished.completion_tokens,
        "truncated": truncated,
        "counts": asdict(finished.counts),
        "law": asdict(finished.law),
        "notes": list(finished.notes),
        "prefill_seconds": finished.prefill_seconds,
        "decode_seconds": finished.decode_seconds,
        "wall_seconds": wall,
        "ok": verdict.ok,
        "why": verdict.reason,
    }
