"""Plain batched sampling of a small trunk, and pass@1 over the held-out tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from mtrun.runtime.forge.nano_tokenizer import END, SAMPLER, prompt_text
from mtrun.runtime.forge.tasks import catalogue
from mtrun.runtime.forge.tasks.contract import Task, Verdict

MAX_TOKENS = 160
_ROWS = 64  # prompts decoded at once


@dataclass(frozen=True)
class Answered:
    """One sampled answer."""

    task: Task
    asked: list[int]  # ids of the prompt
    ids: list[int]  # ids of the answer, its end included where it came
    text: str
    truncated: bool


def answers(model: Any, tokenizer: Any, tasks: Sequence[Task], seed: int) -> Iterator[Answered]:
    """Samples one answer to each task under the pack's sampler, in groups of equal prompt length."""
    groups: dict[int, list[tuple[Task, list[int]]]] = {}
    for task in tasks:
        ids = tokenizer.encode(prompt_text(task.prompt), add_special_tokens=False).ids
        groups.setdefault(len(ids), []).append((task, ids))
    eos = tokenizer.token_to_id(END)
    rng = np.random.default_rng(seed)
    for length in sorted(groups):
        for start in range(0, len(groups[length]), _ROWS):
            some = groups[length][start : start + _ROWS]
            for (task, asked), ids in zip(some, _decode(model, [a for _, a in some], eos, rng), strict=True):
                said = ids[:-1] if ids and ids[-1] == eos else ids
                yield Answered(task, asked, ids, tokenizer.decode(said), len(said) == len(ids))


def _decode(model: Any, prompts: list[list[int]], eos: int, rng: np.random.Generator) -> list[list[int]]:
    cache = make_prompt_cache(model)
    said: list[list[int]] = [[] for _ in prompts]
    ids, done = mx.array(prompts), np.zeros(len(prompts), dtype=bool)
    for _ in range(MAX_TOKENS):
        logits = np.array(model(ids, cache=cache)[:, -1])  # [B, V]
        chosen = draw(logits, rng)
        for row in np.flatnonzero(~done):
            said[row].append(int(chosen[row]))
        done |= chosen == eos
        if done.all():
            break
        ids = mx.array(chosen)[:, None]
    return said


def draw(logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """logits [B, V] -> ids [B]: top-p keeps while the mass before a token is below it, then top-k."""
    top = np.argsort(-logits, axis=-1, kind="stable")[:, : SAMPLER["top_k"]]
    rows = np.exp(logits - logits.max(axis=-1, keepdims=True))
    rows /= rows.sum(axis=-1, keepdims=True)
    kept = np.take_along_axis(rows, top, axis=-1).astype(np.float64)
    before = np.cumsum(kept, axis=-1) - kept
    kept[before >= SAMPLER["top_p"]] = 0.0
    edges = np.cumsum(kept, axis=-1)
    coin = rng.random(len(edges))[:, None] * edges[:, -1:]
    return np.take_along_axis(top, np.argmax(coin < edges, axis=-1)[:, None], axis=-1)[:, 0]


@dataclass(frozen=True)
class Passed:
    """pass@1, one sample a task; a truncated answer fails."""

    by_family: dict[str, float]
    overall: float
    truncated: int
    wrong: list[tuple[Answered, Verdict]]


def pass_at_1(model: Any, tokenizer: Any, tasks: Sequence[Task], seed: int = 0) -> Passed:
    """Samples and checks every task."""
    right, asked, truncated = Counter(), Counter(), 0
    wrong: list[tuple[Answered, Verdict]] = []
    for answer in answers(model, tokenizer, tasks, seed):
        verdict = Verdict(False, "truncated.") if answer.truncated else catalogue.check(answer.task, answer.text)
        asked[answer.task.family] += 1
        right[answer.task.family] += verdict.ok
        truncated += answer.truncated
        if not verdict.ok:
            wrong.append((answer, verdict))
    by_family = {name: right[name] / count for name, count in sorted(asked.items())}
    return Passed(by_family, sum(right.values()) / max(1, len(tasks)), truncated, wrong)
