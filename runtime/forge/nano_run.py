"""One run of nano's trunk in its folder: go on from the checkpoint, measure, record, draw the curve."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.forge import record
from mtrun.runtime.forge.bar import Advance
from mtrun.runtime.forge.nano_recipe import NanoConfig, stage_at
from mtrun.runtime.forge.nano_sample import Passed, pass_at_1
from mtrun.runtime.forge.nano_tokenizer import train_tokenizer, write_tokenizer
from mtrun.runtime.forge.nano_train import FILE, TrunkTrainer
from mtrun.runtime.forge.tasks import catalogue
from mtrun.runtime.packs.members import TOKENIZER

CURVE = "curve.svg"


@dataclass(frozen=True)
class Left:
    """How a run was left."""

    finished: bool  # False: left on request; the same command goes on
    passed: Passed | None  # over the whole held-out set; None where the run is not finished


def prepare(config: NanoConfig, folder: Path, fresh: bool) -> TrunkTrainer:
    """A trainer at the folder's checkpoint, or at the start. Raises ConfigurationError."""
    if fresh:
        record.clear(folder, FILE, TOKENIZER, record.LOG, record.RUN, CURVE)
    trainer = TrunkTrainer(config, tokenizer_of(config, folder))
    trainer.resume(folder)
    record.cut_log(folder, trainer.cursor.step)
    return trainer


def tokenizer_of(config: NanoConfig, folder: Path) -> Any:
    """The folder's tokenizer, learnt now and kept there where there is none."""
    from tokenizers import Tokenizer

    path = folder / TOKENIZER
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_tokenizer(folder, train_tokenizer(config.shape.vocab, config.seed))
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for malformed files
        raise ConfigurationError(f"{path} is no tokenizer ({error}): train with --fresh.") from error


def train(trainer: TrunkTrainer, folder: Path, advance: Advance, stop: Callable[[], bool]) -> Left:
    """Trains to the end of the schedule, or until `stop()` is true after a step; either way the run is saved."""
    config, held, noted = trainer.config, catalogue.held_set(), ""
    advance(trainer.progress(), noted)
    while trainer.progress() < 1.0:
        loss = trainer.step()
        done = trainer.cursor.step
        if done % config.report_every == 0:
            due = done % config.measure_every == 0
            passed = pass_at_1(trainer.model, trainer.tokenizer, held) if due else None
            _append(trainer, folder, passed)
            noted = f"  pass@1 {passed.overall:.3f}" if passed else noted
        if done % config.checkpoint_every == 0:
            trainer.save(folder)
        advance(trainer.progress(), f"step {done}  loss {loss:.3f}{noted}")
        if stop() and trainer.progress() < 1.0:
            trainer.save(folder)
            return Left(False, None)
    trainer.save(folder)
    passed = pass_at_1(trainer.model, trainer.tokenizer, held)
    _append(trainer, folder, passed)
    return Left(True, passed)


def _append(trainer: TrunkTrainer, folder: Path, passed: Passed | None) -> None:
    cursor, config = trainer.cursor, trainer.config
    line: dict[str, Any] = {
        "step": cursor.step,
        "loss": float(np.mean(cursor.losses[-config.report_every :])),
        "rate": round(trainer.rate(), 5),
        "seconds": round(cursor.seconds, 1),
        "tokens": cursor.tokens,
        "progress": round(trainer.progress(), 5),
        "stage": stage_at(cursor.step, config.speed).step,
    }
    if passed:
        line |= {"pass_at_1": passed.by_family | {"all": passed.overall}, "truncated": passed.truncated}
    with (folder / record.LOG).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def draw_curve(log: list[dict[str, Any]], path: Path) -> None:
    """Loss and held-out pass@1 over training time, as an SVG. Raises ConfigurationError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("the curve needs matplotlib: pip install 'mtrun[forge]'.") from error
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    left = figure.subplots()
    minutes = [entry["seconds"] / 60 for entry in log]
    left.plot(minutes, [entry["loss"] for entry in log], color="0.6", label="training loss (nats)")
    left.set_xlabel("minutes of training")
    left.set_ylabel("loss (nats an answer token)")
    lines = list(left.get_lines())
    measured = [entry for entry in log if entry.get("pass_at_1")]
    if measured:
        right = left.twinx()
        right.set_ylabel("held-out pass@1")
        right.set_ylim(0, 1)
        for number, name in enumerate(sorted(measured[-1]["pass_at_1"])):
            points = [(entry["seconds"] / 60, entry["pass_at_1"].get(name, 0.0)) for entry in measured]
            style: Any = {"color": "black", "linewidth": 2.0} if name == "all" else {"color": f"C{number}"}
            lines += right.plot(*zip(*points, strict=True), label=name, **style)
    left.legend(lines, [str(line.get_label()) for line in lines], loc="center right", frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})
