"""`mtrun forge sample|features|train|eval|build`: a draft head for a pack, from chats to a pack that serves it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mtrun.runtime.cli.forge_nano import nano
from mtrun.runtime.cli.forge_sample import sample
from mtrun.runtime.cli.interrupts import interrupts
from mtrun.runtime.errors import ConfigurationError

if TYPE_CHECKING:
    from mtrun.runtime.forge.opened import Opened
    from mtrun.runtime.forge.recipe import TrainConfig
    from mtrun.runtime.forge.runner import Job
    from mtrun.runtime.forge.train import Trainer

FOLDER = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)
SHARE = click.FloatRange(0, 1)


@click.group()
def forge() -> None:
    """Train a draft head: sample, features, train, eval, build. Or a small pack from nothing: nano."""


def _pack_command(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A command on PACK that first settles which BLAS computes; `opened` is the pack, described."""

    def decorate(body: Callable[..., Any]) -> click.Command:
        def run(source: str, threads: int, **options: Any) -> Any:
            from mtrun.runtime.forge.opened import arm_blas, open_pack

            opened = replace(open_pack(source), threads=threads)
            blas = arm_blas(opened, threads)  # before anything imports mlx
            click.echo(f"cpu_blas {'armed' if blas.ok else 'declined'}: {blas.reason}", err=True)
            return body(opened, **options)

        run.__doc__ = body.__doc__
        run.__click_params__ = getattr(body, "__click_params__", [])  # type: ignore[attr-defined]
        threaded = click.option(
            "--threads", type=click.IntRange(1, 64), default=1, show_default=True, help="BLAS threads."
        )
        return forge.command(name)(click.argument("source", metavar="PACK")(threaded(run)))

    return decorate


def _set(name: str, kind: Any, default: Any, text: str, **more: Any) -> Callable[[Any], Any]:
    return click.option(name, type=kind, default=default, show_default=default is not None, help=text, **more)


@_pack_command("features")
@_set("--data", FOLDER, None, "Chats: a folder of `sample`, or an .npz of ids, lengths, response bits.", required=True)
@_set("--out", FOLDER, None, "Folder for the shards.", required=True)
@_set("--top", click.IntRange(1, 1024), 64, "Likeliest tokens kept of each target row.")
@_set("--batch", COUNT, 8, "Chats a forward.")
@_set("--shard", COUNT, 128, "Chats a shard.")
@_set("--limit", COUNT, None, "Chats in all; default all.")
@_set("--seed", int, 0, "Order of the chats.")
@click.option(
    "--top-from",
    type=click.Choice(["response", "all"]),
    default="response",
    show_default=True,
    help="Tokens that become targets: the assistant's, or every one (plain text).",
)
def features(opened: Opened, data: Path, out: Path, limit: int | None, top_from: str, **numbers: int) -> int:
    """Run PACK's trunk over chats once and keep its states and target rows. Shards that exist are not made again."""
    from mtrun.runtime.forge import corpus
    from mtrun.runtime.forge.bar import progress
    from mtrun.runtime.forge.extract import FeatureConfig, Plan, claim, extract, origin

    config = FeatureConfig(limit=limit, every_row=top_from == "all", **numbers)
    chats = corpus.read(data, opened.pack.vocab_size, opened.pack.context_length)
    claim(out, origin(config, {"name": opened.pack.name, "trunk_identity": opened.trunk_identity}, data))
    plan = Plan.of(chats, config, out)
    total = int(chats.lengths[plan.chats].sum())
    done = new = 0
    with opened.served_trunk() as trunk, progress("features") as advance:
        for path, tokens, computed in extract(trunk, chats, plan):
            done, new = done + tokens, new + (tokens if computed else 0)
            advance(done / total, f"{path.name}  {done:,} of {total:,} tokens")
    click.echo(f"{out}: {len(list(plan.shards()))} shards, {total:,} tokens, {new:,} of them computed now")
    return 0


@_pack_command("train")
@_set("--features", FOLDER, None, "Shards to train on; may be given several times.", required=True, multiple=True)
@_set("--shards", COUNT, None, "Only the first so many of each folder; default all.")
@_set("--held", FOLDER, None, "Shards to measure on, never trained on.")
@_set("--out", FOLDER, None, "Run folder: checkpoint, log, curve.", required=True)
@_set("--steps", COUNT, None, "End after so many steps in all (1000 if --minutes is not given).")
@_set("--minutes", click.FloatRange(0, min_open=True), None, "End after so much training time in all.")
@_set("--depth", click.IntRange(1, 8), 3, "Draft depth that chains are trained to.")
@_set("--batch", COUNT, 16, "Chats a step.")
@_set("--lr", click.FloatRange(0, min_open=True), 3e-3, "Peak learning rate.")
@_set("--warmup", COUNT, 50, "Steps up to it.")
@_set("--chain-from", SHARE, 0.6, "Share of the run after which whole chains are trained.")
@_set("--chain-share", SHARE, 0.5, "Share of positions scored at depths 2 and more.")
@_set("--depth-decay", click.FloatRange(0, 1, min_open=True), 1.0, "What each depth's loss weighs of the one before.")
@_set("--top-p", click.FloatRange(0, 1, min_open=True), 0.95, "The sampler's top_p that targets are cut by.")
@_set("--top-k", COUNT, 20, "The sampler's top_k that targets are cut by.")
@_set("--overlap-share", SHARE, 0.0, "Share of the loss that is 1 - overlap; the rest is cross-entropy.")
@click.option("--from-own", is_flag=True, help="Start from the head that PACK carries.")
@_set("--draft-vocab", COUNT, None, "Ids to draft over, ranked by the trunk's mass; default 8192, or the own head's.")
@_set("--report-every", COUNT, 20, "Steps a log line.")
@_set("--measure-every", COUNT, 200, "Steps between two held-out measurements.")
@_set("--seed", int, 0, "Of weights and order.")
@click.option("--resume/--fresh", default=True, show_default=True, help="Go on from the folder's checkpoint, or anew.")
def train(opened: Opened, resume: bool, from_own: bool, **options: Any) -> int:
    """Train an MTP head for PACK on feature shards. Ctrl-C saves; the same command goes on."""
    from mtrun.runtime.forge import record, runner
    from mtrun.runtime.forge.bar import progress

    job = _job(options)
    config = replace(_recipe(options), start=opened.own_head_sha256() if from_own else None)
    trainer = runner.prepare(opened, config, job, fresh=not resume)
    if trainer.cursor.step:
        click.echo(f"goes on at step {trainer.cursor.step:,} of {job.out}", err=True)
    with interrupts() as stop, progress("train") as advance:
        outcome = runner.train(trainer, job, advance, stop)
    record.write_run(job.out, runner.facts(opened, trainer, job, outcome))
    _draw(job.out)
    if not outcome.finished:
        click.echo(f"saved at step {outcome.step:,}: the same command goes on", err=True)
        return 130
    click.echo(f"{job.out}: {outcome.step:,} steps, {trainer.cursor.seconds:.0f} s of training")
    click.echo(outcome.figures.text() if outcome.figures else "no --held shards: the overlap was not measured")
    return 0


def _recipe(options: dict[str, Any]) -> TrainConfig:
    from mtrun.runtime.forge.recipe import TrainConfig

    same = (
        "minutes",
        "batch",
        "warmup",
        "depth",
        "chain_from",
        "chain_share",
        "depth_decay",
        "overlap_share",
        "top_p",
        "top_k",
        "seed",
    )
    steps = options["steps"] or (1000 if options["minutes"] is None else 10**7)
    return TrainConfig(steps=steps, learning_rate=options["lr"], **{name: options[name] for name in same})


def _job(options: dict[str, Any]) -> Job:
    from mtrun.runtime.forge.runner import Job

    same = ("features", "out", "held", "shards", "draft_vocab", "report_every", "measure_every")
    return Job(**{name: options[name] for name in same})


def _draw(run: Path) -> None:
    """The run's curve, where matplotlib is there and anything was logged."""
    from mtrun.runtime.forge import curve, record

    log = record.read_log(run)
    if not log:
        return
    try:
        curve.draw(log, run / curve.FILE)
    except ConfigurationError as error:
        click.echo(f"no {curve.FILE}: {error}", err=True)


@_pack_command("eval")
@_set("--features", FOLDER, None, "Held-out shards.", required=True)
@_set("--run", FOLDER, None, "Run folder; default: the head that PACK carries.")
@_set("--depth", click.IntRange(1, 8), 3, "Deepest draft measured.")
@_set("--batches", COUNT, None, "Batches read; default all.")
@_set("--top-p", click.FloatRange(0, 1, min_open=True), 0.95, "Of the target rows, for a head without a run.")
@_set("--top-k", COUNT, 20, "Of the target rows, for a head without a run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def evaluate(
    opened: Opened, features: Path, run: Path | None, depth: int, batches: int | None, as_json: bool, **cut: Any
) -> int:
    """Held-out overlap of a head by depth, teacher-forced, and the tokens a cycle that it implies."""
    from mtrun.runtime.forge.features import shard_paths
    from mtrun.runtime.forge.figures import DEFINITIONS, measure
    from mtrun.runtime.forge.runner import check_origin

    paths = shard_paths(features)
    check_origin(opened, features)
    trainer = _loaded(opened, run, cut)
    found = measure(trainer, paths, depth, batches)
    if as_json:
        whose = str(run) if run else opened.pack.name
        click.echo(json.dumps({"head": whose, **found.to_json(), "definitions": DEFINITIONS}, indent=2))
    else:
        click.echo(found.text())
    return 0


def _loaded(opened: Opened, run: Path | None, cut: dict[str, Any]) -> Trainer:
    """A trainer that holds the head of a run, or the pack's own as stored."""
    from mlx.utils import tree_unflatten

    from mtrun.runtime.forge import checkpoint
    from mtrun.runtime.forge.recipe import TrainConfig
    from mtrun.runtime.forge.train import Trainer

    if run is None:
        head, ids = opened.started_head()
        config = TrainConfig(**cut)
    else:
        found = checkpoint.required(run)
        head, ids, config = opened.new_head(0), found.draft_ids, found.config
        head.update(tree_unflatten(list(found.head.items())))
    embedding, vocabulary = opened.tables(ids)
    return Trainer(config, head, embedding, vocabulary, opened.threads)


@_pack_command("build")
@_set("--run", FOLDER, None, "Run folder with the checkpoint.", required=True)
@_set("--out", FOLDER, None, "Folder to write.", required=True)
@_set("--bits", click.Choice(["4", "6", "8"]), "8", "Bits a weight.")
@_set("--licence", str, None, "Of the head; default the pack's.")
@_set("--draft-vocab", COUNT, None, "Draft over so many ids, ranked on --features; default those of the run.")
@_set("--features", FOLDER, None, "Shards that rank them.")
@_set("--start-card", FOLDER, None, "head.yaml of the head that the run started from (train --from-own).")
@click.option("--attach", is_flag=True, help="Write a whole pack: PACK's files with this head.")
@click.option("--replace", is_flag=True, help="Replace an earlier build at --out.")
def build(opened: Opened, run: Path, out: Path, bits: str, attach: bool, **options: Any) -> int:
    """Make the head of a run ready to ship: quantised, checksummed, with a card; or a pack that serves it."""
    from mtrun.runtime.forge.build import BuildConfig, build_head, build_pack

    config = BuildConfig(bits=int(bits), **options)
    (build_pack if attach else build_head)(opened, run, out, config)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    click.echo(f"{out}: {size / 1e6:.1f} MB" + (f"; serve it with mtrun pack={out}" if attach else ""))
    return 0


forge.add_command(nano)
forge.add_command(sample)
