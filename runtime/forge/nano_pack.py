"""From a trained trunk to the pack of nano: 8-bit trunk, its own answers, two heads, the folder that serves them.

The default head is left where drafts are still rejected often (`HeadPlan.gap`): on text as regular as this a head that
is trained out drafts so well that every acceptance law behaves the same. The strong one goes on to the end.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import yaml
from mlx.utils import tree_flatten

from mtrun.runtime.forge import corpus, extract, features, nano_sample, record, runner
from mtrun.runtime.forge.bar import Advance
from mtrun.runtime.forge.build import BuildConfig, build_head, build_pack, quantise
from mtrun.runtime.forge.figures import Figures, measure
from mtrun.runtime.forge.nano_recipe import STAGES, tasks_at
from mtrun.runtime.forge.nano_tokenizer import SAMPLER, write_tokenizer
from mtrun.runtime.forge.nano_train import TrunkTrainer
from mtrun.runtime.forge.opened import Opened, open_pack
from mtrun.runtime.forge.recipe import TrainConfig
from mtrun.runtime.forge.tasks import catalogue
from mtrun.runtime.forge.tasks.contract import Task
from mtrun.runtime.forge.train import Trainer
from mtrun.runtime.packs.families import family_of
from mtrun.runtime.packs.identity import file_entries, trunk_identity
from mtrun.runtime.packs.manifest import Manifest, SamplerDefaults, read_manifest, write_manifest
from mtrun.runtime.packs.members import CONFIG, WEIGHTS
from mtrun.runtime.packs.tensors import read_trunk_tensors

NAME, LICENCE, CARD = "nano", "Apache-2.0", "card.yaml"
BITS, GROUP = 8, 32
Stage = Callable[[str], AbstractContextManager[Advance]]
PACK, TRUNK, STRONG = "pack", "trunk", "strong"


@dataclass(frozen=True)
class HeadPlan:
    """How the heads are trained, and when the default one is left."""

    chats: int = 1600  # the trunk's own answers that heads are trained on
    held_chats: int = 320
    gap: float = 0.27  # mean of 1 - overlap over depths at which the default head is left
    check_every: int = 4  # steps between two looks at it
    check_batches: int = 6
    strong_steps: int = 1500
    draft_vocab: int = 384
    batch: int = 16
    learning_rate: float = 3e-3


def write_trunk(trainer: TrunkTrainer, folder: Path, card: dict[str, Any]) -> Path:
    """A pack without a head: 8-bit affine weights, tokenizer, card, manifest. Replaces what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    weights: Any = tree_flatten(trainer.model.parameters())
    mx.save_safetensors(str(folder / WEIGHTS), quantise(dict(weights), BITS, GROUP), metadata={"format": "mlx"})
    config = trainer.config.shape.config(trainer.tokenizer.get_vocab_size(), trainer.eos)
    config["quantization"] = {"group_size": GROUP, "bits": BITS}
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    write_tokenizer(folder, trainer.tokenizer)
    (folder / CARD).write_text(yaml.safe_dump(card, sort_keys=False, allow_unicode=True), encoding="utf-8")
    manifest = Manifest(
        name=NAME,
        family="llama",
        trunk_identity=trunk_identity(read_trunk_tensors(folder).values()),
        licence=LICENCE,
        files=file_entries(folder),
        sampler=SamplerDefaults(SAMPLER["temperature"], SAMPLER["top_p"], int(SAMPLER["top_k"])),
        provenance={"source": "trained from nothing by `mtrun forge nano`", "seed": str(trainer.config.seed)},
    )
    write_manifest(folder, manifest)
    return folder


def trunk_card(trainer: TrunkTrainer, passed: nano_sample.Passed | None) -> dict[str, Any]:
    """Data, recipe, time and figures of the trunk, as recorded."""
    count: Any = tree_flatten(trainer.model.parameters())
    return {
        "summary": "a small llama trained from nothing on tasks that check themselves",
        "licence": LICENCE,
        "data": {
            "generators": {name: family.levels for name, family in catalogue.FAMILIES.items()},
            "curriculum": [{"from_step": stage.step, "families": list(stage.mix)} for stage in STAGES],
            "tokens": trainer.cursor.tokens,
            "held_out": f"{catalogue.HELD_TASKS} tasks whose content no training task has",
        },
        "recipe": trainer.config.to_json(),
        "steps": trainer.cursor.step,
        "training_seconds": round(trainer.cursor.seconds, 1),
        "first_losses": [round(loss, 6) for loss in trainer.cursor.losses[:200]],
        "parameters": sum(value.size for _, value in count),
        "storage": {"bits": BITS, "group_size": GROUP},
        "pass_at_1": None if passed is None else {**passed.by_family, "all": passed.overall},
        "limits": "It knows these task families and nothing else; a longer chat is cut to its last question.",
    }


def sample_chats(model: Any, tokenizer: Any, tasks: list[Task], seed: int, path: Path) -> Path:
    """Writes the trunk's own answers to `tasks` as chats (format: `corpus`)."""
    ids: list[int] = []
    lengths: list[int] = []
    response: list[int] = []
    for answer in nano_sample.answers(model, tokenizer, tasks, seed):
        ids += answer.asked + answer.ids
        lengths.append(len(answer.asked) + len(answer.ids))
        response += [0] * len(answer.asked) + [1] * len(answer.ids)
    np.savez(path, ids=np.array(ids), lengths=np.array(lengths), response=np.packbits(response))
    return path


def make_features(opened: Opened, data: Path, out: Path, seed: int) -> Path:
    """The trunk's states and rows over the chats of `data`."""
    config = extract.FeatureConfig(top=32, seed=seed)
    chats = corpus.read(data, opened.pack.vocab_size, opened.pack.context_length)
    pack = {"name": opened.pack.name, "trunk_identity": opened.trunk_identity}
    extract.claim(out, extract.origin(config, pack, data))
    for _ in extract.extract(opened.trunk(), chats, extract.Plan.of(chats, config, out)):
        pass
    return out


def gap(trainer: Trainer, held: list[Path], batches: int) -> float:
    """Mean over depths of 1 - overlap: what the total variation between target and draft rows is on held-out text."""
    overlaps = trainer.overlaps(held, batches, trainer.config.depth)
    return 1.0 - sum(overlaps) / len(overlaps)


def train_head(opened: Opened, job: runner.Job, plan: HeadPlan, seed: int, until: float, advance: Advance) -> Trainer:
    """Trains a head until its gap is `until` (0 = to the end of the schedule), and records the run."""
    config = TrainConfig(
        steps=plan.strong_steps, batch=plan.batch, learning_rate=plan.learning_rate, chain_from=0.0, seed=seed
    )
    trainer = runner.prepare(opened, config, job, fresh=True)
    held = features.shard_paths(job.held) if job.held else []
    for step, loss in trainer.run(job.paths, job.out):
        done = step + 1
        advance(trainer.progress(), f"step {done}  loss {loss:.3f}")
        if done % job.report_every == 0:
            record.append(job.out, _report(trainer))
        if until and done % plan.check_every == 0 and gap(trainer, held, plan.check_batches) <= until:
            break
    trainer.save(job.out)
    figures = measure(trainer, held, config.depth)
    facts = runner.facts(opened, trainer, job, runner.Outcome(trainer.cursor.step, True, figures))
    facts["gap"] = 1.0 - sum(figures.overlap) / len(figures.overlap)
    record.write_run(job.out, facts)
    return trainer


def _report(trainer: Trainer) -> record.Report:
    cursor = trainer.cursor
    return record.Report(
        step=cursor.step,
        epoch=cursor.epoch,
        loss=float(np.mean(cursor.losses[-20:])),
        lr=trainer.learning_rate(),
        seconds=cursor.seconds,
        progress=trainer.progress(),
        depth=trainer.depth(),
    )


@dataclass(frozen=True)
class Finished:
    """The pack that was written and what it can do."""

    pack: Path
    passed: nano_sample.Passed  # of the trunk as stored
    default: Figures
    strong: Figures


def finish(trainer: TrunkTrainer, out: Path, plan: HeadPlan, stage: Stage) -> Finished:
    """Everything after the trunk. `stage(what)` shows one head's training. Earlier results at `out` are replaced."""
    seed, held = trainer.config.seed, catalogue.held_set()
    folder = write_trunk(trainer, out / TRUNK, trunk_card(trainer, None))
    stored = open_pack(str(folder)).trunk().model  # type: ignore[attr-defined]
    passed = nano_sample.pass_at_1(stored, trainer.tokenizer, held)
    opened = open_pack(str(write_trunk(trainer, folder, trunk_card(trainer, passed))))
    shards = {}
    for name, tasks in (("chats", _practice(trainer, plan.chats, 0)), ("held", _practice(trainer, plan.held_chats, 1))):
        shutil.rmtree(out / name, ignore_errors=True)
        data = sample_chats(stored, trainer.tokenizer, tasks, seed, out / f"{name}.npz")
        shards[name] = make_features(opened, data, out / name, seed)
    figures = {}
    for name, until in (("default", plan.gap), (STRONG, 0.0)):
        job = runner.Job((shards["chats"],), out / f"head-{name}", shards["held"], draft_vocab=plan.draft_vocab)
        with stage(f"{name} head") as advance:
            head = train_head(opened, job, plan, seed, until, advance)
        figures[name] = measure(head, features.shard_paths(shards["held"]), head.config.depth)
    return Finished(_assemble(opened, out), passed, figures["default"], figures[STRONG])


def _practice(trainer: TrunkTrainer, count: int, part: int) -> list[Task]:
    """Training tasks of the last stage that the trunk's own training did not reach."""
    first = 10**7 * (1 + part)
    steps = -(-count // trainer.config.batch)
    tasks = [task for step in range(first, first + steps) for task in tasks_at(trainer.config, step)]
    return [task for task in tasks if catalogue.FAMILIES[task.family].graded][:count]


def _assemble(opened: Opened, out: Path) -> Path:
    """The pack with the default head, the strong one beside it, and a manifest over all."""
    pack = out / PACK
    how = BuildConfig(bits=BITS, group_size=GROUP, licence=LICENCE, replace=True)
    build_pack(opened, out / "head-default", pack, how)
    build_head(opened, out / f"head-{STRONG}", pack / STRONG, how)
    manifest = read_manifest(pack)
    write_manifest(pack, replace(manifest, files=file_entries(pack)))
    return pack


def load_back(pack: Path) -> Any:
    """The pack through the strict reader and its family's loader. Raises PackError."""
    from mtrun.runtime.packs.reader import describe

    found = describe(pack)
    return family_of(found).load(found)
