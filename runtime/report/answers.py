"""The figures of eval runs: answers that were checked, and text that was scored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Any

from mtrun.runtime.acceptance.counts import pooled
from mtrun.runtime.acceptance.rates import kept_draft_rate
from mtrun.runtime.measure.stats import LEVEL, Interval, Values, interval_of, paired_difference
from mtrun.runtime.report.runs import Run

TASKS, TEXT = "tasks", "text"
TEXT_FIGURES = ("nll", "off_support_mass", "mode_mass", "tv", "distinct1", "distinct2", "distinct3", "output_tokens")

Answer = Mapping[str, Any]


@dataclass(frozen=True)
class TaskFigures:
    """What one run of checked tasks says. Intervals are Wilson's with the tasks as units."""

    tasks: int
    answers: int
    seeds: int
    strict: Interval | None  # share that passed; an answer that was cut off failed
    completed: Interval | None  # the same among answers that were not cut off
    truncated: float  # share cut off
    mean_tokens: float
    most_tokens: int
    kept_draft_rate: float | None
    seconds: float
    families: Mapping[str, tuple[Interval, int]]  # strict share and answers by family


@dataclass(frozen=True)
class TextFigures:
    """What one run of scored text says: 95 % t intervals over seeds; `gap` is nll less that of plain decoding."""

    texts: int
    seeds: int
    means: Mapping[str, Interval]
    gap: Interval | None


def wilson(share: float, n: int, level: float = LEVEL) -> Interval:
    """Wilson's interval of a share of `n` independent units."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half), n)


def task_figures(run: Run) -> TaskFigures | None:
    """The figures of a run of tasks; None without an answer. Of two answers to a (task, seed) the first counts."""
    own = _first(run, "task")
    if not own:
        return None
    groups: dict[str, list[Answer]] = {}
    for answer in own:
        groups.setdefault(answer["family"], []).append(answer)
    families = {name: (strict, len(group)) for name, group in groups.items() if (strict := _strict(group))}
    finished = [answer for answer in own if not answer["truncated"]]
    return TaskFigures(
        tasks=len({answer["task"] for answer in own}),
        answers=len(own),
        seeds=len({answer["seed"] for answer in own}),
        strict=_strict(own),
        completed=_strict(finished),
        truncated=1 - len(finished) / len(own),
        mean_tokens=fmean(answer["output_tokens"] for answer in own),
        most_tokens=max(answer["output_tokens"] for answer in own),
        kept_draft_rate=kept_draft_rate(pooled(own)),
        seconds=sum(answer["wall_seconds"] for answer in own),
        families=families,
    )


def text_figures(run: Run, plain: Run | None) -> TextFigures | None:
    """The figures of a run of scored text; `plain` is the run of the same texts that drafted nothing."""
    own = _first(run, "prompt")
    if not own:
        return None
    means = {name: interval_of(_text_values(own, name)) for name in TEXT_FIGURES}
    other = _text_values(_first(plain, "prompt"), "nll") if plain and plain is not run else None
    return TextFigures(
        texts=len(own),
        seeds=len({answer["seed"] for answer in own}),
        means={name: one for name, one in means.items() if one is not None},
        gap=paired_difference(_text_values(own, "nll"), other) if other else None,
    )


def _first(run: Run, unit: str) -> list[Answer]:
    """Answers in the order (unit, seed); of a repeated one the first."""
    found: dict[tuple[Any, int], Answer] = {}
    for answer in run.answers:
        if answer.get("reason") != "cancelled":
            found.setdefault((answer[unit], answer["seed"]), answer)
    return [found[key] for key in sorted(found)]


def _strict(answers: Sequence[Answer]) -> Interval | None:
    if not answers:
        return None
    share = fmean(bool(answer["ok"]) and not answer["truncated"] for answer in answers)
    return wilson(share, len({answer["task"] for answer in answers}))


def _text_values(answers: Sequence[Answer], name: str) -> Values:
    return {(one["seed"], one["prompt"]): one[name] for one in answers if one.get(name) is not None}
