"""One run of tasks: what is missing is decoded on the calling thread, each answer kept at once, then scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtrun.runtime.evaluate.cells import label
from mtrun.runtime.evaluate.contract import TaskSet
from mtrun.runtime.evaluate.folder import SUMMARY, Key, RunFolder, lanes
from mtrun.runtime.evaluate.score import summarize
from mtrun.runtime.measure.store import keep_setting, write_json

if TYPE_CHECKING:
    from mtrun.runtime.forge.bar import Advance
    from mtrun.runtime.generator import MtpGenerator

Prompts = Sequence[tuple[int, ...]]  # token ids, by the task's place in the set


def decode(
    generator: MtpGenerator,
    asked: TaskSet,
    prompts: Prompts,
    folder: RunFolder,
    cell: str,
    command: Sequence[str],
    advance: Advance,
    stop: Callable[[], bool],
) -> bool:
    """Decodes what `folder` lacks; False where `stop` ended it early. Raises ConfigurationError for another setting."""
    from mtrun.runtime.evaluate.answering import warm_up
    from mtrun.runtime.measure.machine import load, session
    from mtrun.runtime.measure.setting import law_of, setting_of

    overrides = generator.prepared.composed.overrides
    setting = setting_of(generator, overrides)
    folder.check(lanes(setting))
    facts = {
        "label": label(law_of(generator)),
        "overrides": list(overrides),
        "setting": keep_setting(folder.path, setting),
    }
    warm_up(generator, prompts[0])
    folder.begin(cell, facts, command, session())
    generator.registry.start_serving()
    try:
        return _answers(generator, asked, prompts, folder, advance, stop)
    finally:
        verdicts = {one.lane: [one.state.value, one.engaged_count] for one in generator.registry.verdicts()}
        folder.end(asked, {"load_after": load(), "verdicts": verdicts})


def _answers(
    generator: MtpGenerator,
    asked: TaskSet,
    prompts: Prompts,
    folder: RunFolder,
    advance: Advance,
    stop: Callable[[], bool],
) -> bool:
    from mtrun.runtime.evaluate.answering import answer

    places = {task.id: index for index, task in enumerate(asked.tasks)}
    total = folder.plan.tasks * len(folder.plan.seeds)
    tokens, seconds = 0, 0.0
    advance(len(folder.answers) / total, "")
    for task, seed in folder.missing(asked):
        index = places[task]
        line = answer(generator, asked, index, prompts[index], seed, folder.plan.max_tokens, stop)
        if line is None:
            return False
        folder.keep(line)
        tokens, seconds = tokens + max(line["output_tokens"] - 1, 0), seconds + line["decode_seconds"]
        advance(len(folder.answers) / total, _note(folder.answers, tokens / seconds if seconds else 0.0))
        if stop():
            return not folder.missing(asked)
    return True


def _note(answers: dict[Key, dict[str, Any]], speed: float) -> str:
    right = sum(line["ok"] for line in answers.values())
    return f"{len(answers):,} answers, pass@1 {right / len(answers):.3f}, {speed:.1f} tok/s"


def write_summary(folder: RunFolder, scored_with: str) -> dict[str, Any]:
    """Scores the answers as they are kept, writes summary.json and returns it."""
    assert folder.run is not None, "a summary follows a session"
    summary = summarize(folder.run, list(folder.answers.values()), scored_with)
    write_json(Path(folder.path) / SUMMARY, summary)
    return summary
