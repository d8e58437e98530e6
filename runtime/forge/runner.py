"""One training run in its folder: start or go on, report, keep the record, leave cleanly when asked to."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.forge import checkpoint, features, record
from mtrun.runtime.forge.bar import Advance
from mtrun.runtime.forge.extract import read_origin
from mtrun.runtime.forge.figures import DEFINITIONS, Figures, measure
from mtrun.runtime.forge.opened import Opened
from mtrun.runtime.forge.recipe import TrainConfig
from mtrun.runtime.forge.train import Trainer

DRAFT_IDS = "draft_ids.npy"
DRAFT_VOCAB = 8192


@dataclass(frozen=True)
class Job:
    """What a run works on."""

    features: tuple[Path, ...]  # folders
    out: Path
    held: Path | None = None  # shards that are never trained on; None = no overlap is reported
    shards: int | None = None  # of each folder, in name order; None = all
    draft_vocab: int | None = None  # ids; None = those of the head that the run starts from, else DRAFT_VOCAB
    report_every: int = 20  # steps a log line
    measure_every: int = 200  # steps between two held-out measurements
    measure_batches: int = 8

    def paths(self) -> list[Path]:
        """The shards to train on, as they are now. Raises ConfigurationError."""
        return [path for folder in self.features for path in features.shard_paths(folder)[: self.shards]]


@dataclass(frozen=True)
class Outcome:
    """How a run was left."""

    step: int
    finished: bool  # False: left on request; the same command goes on
    figures: Figures | None  # held-out, over every batch; None where nothing is held out or the run is not finished


def check_origin(opened: Opened, folder: Path) -> dict[str, Any] | None:
    """What the features of `folder` were made of. Raises ConfigurationError when it was another trunk."""
    found = read_origin(folder)
    theirs = ((found or {}).get("pack") or {}).get("trunk_identity")
    if theirs is not None and theirs != opened.trunk_identity:
        raise ConfigurationError(
            f"the features of {folder} are of the trunk {theirs[:12]} and {opened.pack.name} is "
            f"{opened.trunk_identity[:12]}: give that pack, or make features of this one."
        )
    return found


def prepare(opened: Opened, config: TrainConfig, job: Job, fresh: bool) -> Trainer:
    """A trainer at the folder's checkpoint, or at the start. Raises ConfigurationError."""
    paths = job.paths()
    for folder in filter(None, (*job.features, job.held)):
        check_origin(opened, folder)
        features.shard_paths(folder)
    if fresh:
        record.clear(job.out, checkpoint.FILE, DRAFT_IDS, record.LOG, record.RUN)
    if config.start is None:
        head, ids = opened.new_head(config.seed), draft_ids(opened, paths, job)
    else:
        head, own = opened.started_head()
        ids = own if job.draft_vocab is None else draft_ids(opened, paths, job)
    embedding, vocabulary = opened.tables(ids)
    trainer = Trainer(config, head, embedding, vocabulary, opened.threads)
    trainer.resume(job.out)
    record.cut_log(job.out, trainer.cursor.step)
    return trainer


def draft_ids(opened: Opened, paths: list[Path], job: Job) -> np.ndarray:
    """[V'] int32 ascending: the checkpoint's, else the run folder's, else ranked now and kept there."""
    size = min(job.draft_vocab or DRAFT_VOCAB, opened.pack.vocab_size)
    found = checkpoint.read(job.out)
    kept = job.out / DRAFT_IDS
    if found is not None:
        ids = np.array(found.draft_ids)
    elif kept.is_file():
        ids = np.load(kept)
    else:
        ids = features.rank_vocabulary(paths, opened.pack.vocab_size, size, opened.pack.eos_ids)
        job.out.mkdir(parents=True, exist_ok=True)
        np.save(kept, ids)
    if len(ids) != size:
        raise ConfigurationError(
            f"{job.out} drafts over {len(ids):,} ids, not {size:,}: give --draft-vocab {len(ids)}, or --fresh."
        )
    return ids


def train(trainer: Trainer, job: Job, advance: Advance, stop: Callable[[], bool]) -> Outcome:
    """Trains to the end of the schedule, or until `stop()` is true after a step; either way the run is saved."""
    held = features.shard_paths(job.held) if job.held else []
    losses: list[float] = []
    noted = ""
    advance(trainer.progress(), noted)
    for step, loss in trainer.run(job.paths, job.out):
        losses.append(loss)
        done = step + 1
        if done % job.report_every == 0:
            due = held and done % job.measure_every == 0
            overlap = trainer.overlaps(held, job.measure_batches, trainer.config.depth) if due else None
            record.append(job.out, _report(trainer, losses, overlap))
            losses.clear()
            if overlap:
                noted = "  overlap " + " ".join(f"{value:.3f}" for value in overlap)
        advance(trainer.progress(), f"step {done}  loss {loss:.3f}{noted}")
        if stop() and trainer.progress() < 1.0:
            trainer.save(job.out)
            return Outcome(trainer.cursor.step, False, None)
    figures = measure(trainer, held, trainer.config.depth) if held else None
    return Outcome(trainer.cursor.step, True, figures)


def _report(trainer: Trainer, losses: list[float], overlap: list[float] | None) -> record.Report:
    cursor = trainer.cursor
    return record.Report(
        step=cursor.step,
        epoch=cursor.epoch,
        loss=float(np.mean(losses)),
        lr=trainer.learning_rate(),
        seconds=cursor.seconds,
        progress=trainer.progress(),
        depth=trainer.depth(),
        overlap=overlap,
    )


def facts(opened: Opened, trainer: Trainer, job: Job, outcome: Outcome) -> dict[str, Any]:
    """What `run.json` keeps: where everything came from and what came out."""
    return {
        "pack": {"name": opened.pack.name, "trunk_identity": opened.trunk_identity},
        "data": [_data(folder, job.shards) for folder in job.features],
        "held": _data(job.held) if job.held else None,
        "recipe": asdict(trainer.config),
        "step_math": trainer.math.name,
        "draft_vocab_size": len(trainer.vocabulary.ids),
        "finished": outcome.finished,
        "step": outcome.step,
        "epoch": trainer.cursor.epoch,
        "seconds": round(trainer.cursor.seconds, 1),
        "figures": outcome.figures.to_json() if outcome.figures else None,
        "definitions": DEFINITIONS,
        "made_with": {name: importlib.metadata.version(name) for name in ("mtrun", "mlx", "mlx-lm")},
    }


def _data(folder: Path, shards: int | None = None) -> dict[str, Any]:
    origin = read_origin(folder) or {}
    return {**asdict(features.count(features.shard_paths(folder)[:shards])), "file": origin.get("data")}
