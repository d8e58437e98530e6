"""`mtrun forge nano`: the embedded pack from nothing, by one command that goes on where it was left."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder: run files, and the pack in pack/.")
@click.option("--steps", type=click.IntRange(min=1), default=5860, show_default=True, help="Of the trunk.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=None, help="End the trunk by the clock.")
@click.option("--streams", type=click.IntRange(1, 2), default=2, show_default=True, help="Cores the trunk trains on.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights, data and order.")
@click.option("--trunk-only", is_flag=True, help="Stop when the trunk is trained.")
@click.option("--resume/--fresh", default=True, show_default=True, help="Go on from the folder's checkpoint, or anew.")
def nano(out: Path, steps: int, minutes: float | None, streams: int, seed: int, trunk_only: bool, resume: bool) -> int:
    """Train nano: a trunk of 2 M parameters on tasks that check themselves, two MTP heads, and the pack of them."""
    from mtrun.runtime.forge.nano_process import settle

    blas = settle()  # before anything imports mlx
    click.echo(f"cpu_blas {'armed' if blas.ok else 'declined'}: {blas.reason}", err=True)
    from mtrun.runtime.cli.interrupts import interrupts
    from mtrun.runtime.forge import nano_run, record
    from mtrun.runtime.forge.bar import progress
    from mtrun.runtime.forge.nano_recipe import NanoConfig

    config = NanoConfig(minutes=minutes, steps=steps, streams=streams, seed=seed)
    trainer = nano_run.prepare(config, out, fresh=not resume)
    if trainer.cursor.step:
        click.echo(f"goes on at step {trainer.cursor.step:,} of {out}", err=True)
    with interrupts() as stop, progress("trunk") as advance:
        left = nano_run.train(trainer, out, advance, stop)
    log = record.read_log(out)
    if log:
        nano_run.draw_curve(log, out / nano_run.CURVE)
    if not left.finished:
        click.echo(f"saved at step {trainer.cursor.step:,}: the same command goes on", err=True)
        return 130
    if left.passed:
        families = "  ".join(f"{name} {share:.3f}" for name, share in left.passed.by_family.items())
        click.echo(f"pass@1 {left.passed.overall:.3f}  ({families})")
    if trunk_only:
        return 0
    from mtrun.runtime.forge import nano_pack

    done = nano_pack.finish(trainer, out, nano_pack.HeadPlan(), progress)
    click.echo(f"pass@1 {done.passed.overall:.3f} as stored")
    for name, figures in (("default", done.default), ("strong", done.strong)):
        click.echo(f"{name} head:\n{figures.text()}")
    size = sum(path.stat().st_size for path in done.pack.rglob("*") if path.is_file())
    click.echo(f"{done.pack}: {size / 1e6:.1f} MB; serve it with mtrun pack={done.pack}")
    return 0
