"""`mtrun forge sample`: chats that a pack writes itself, for training a draft head on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mtrun.runtime.forge.sample import Done

COUNT = click.IntRange(min=1)
SHARE = click.FloatRange(0, 1)


@click.command()
@click.argument("source", metavar="PACK")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the parts and sample.json.")
@click.option("--chats", type=COUNT, required=True, help="Chats in all.")
@click.option(
    "--first", type=click.IntRange(0), default=0, help="Number of the first chat: held-out ones get their own."
)
@click.option(
    "--prompts", type=click.Path(path_type=Path), help="A text file, one prompt a line; default built-in ones."
)
@click.option("--self-turns", type=SHARE, default=0.0, show_default=True, help="User turns that the model writes.")
@click.option("--second-turns", type=SHARE, default=0.0, show_default=True, help="Chats with a second turn.")
@click.option("--max-tokens", type=COUNT, default=300, show_default=True, help="Of an answer.")
@click.option("--user-tokens", type=COUNT, default=60, show_default=True, help="Of a user turn by the model.")
@click.option("--part", type=COUNT, default=64, show_default=True, help="Chats a part.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of prompts and samples.")
@click.option("--temperature", type=click.FloatRange(0), help="Default the pack's, as the next two.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True))
@click.option("--top-k", type=click.IntRange(0))
def sample(source: str, overrides: tuple[str, ...], out: Path, prompts: Path | None, **options: Any) -> int:
    """Let PACK write chats under its own sampler. Parts that exist are not made again, so Ctrl-C loses one at most."""
    from mtrun.runtime.config.compose import compose
    from mtrun.runtime.engine import Engine
    from mtrun.runtime.forge import sample as sampling
    from mtrun.runtime.forge.bar import progress
    from mtrun.runtime.forge.corpus import PART
    from mtrun.runtime.forge.opened import open_pack

    sampler_words = {name: options.pop(name) for name in ("temperature", "top_p", "top_k")}
    given = {name: value for name, value in sampler_words.items() if value is not None}
    config = sampling.SampleConfig(**options)
    texts = sampling.read_prompts(prompts)
    opened = open_pack(source)
    composed = compose([f"pack={source}", "profile=turbo", *overrides])
    with Engine(composed) as engine:
        sampler = sampling.Sampler(engine, texts, config, given)
        sampling.claim(out, sampler.plan({"name": opened.pack.name, "trunk_identity": opened.trunk_identity}))
        done = sampling.Done(out, 0, 0)
        try:
            with progress("sample") as advance:
                for done in sampling.write(sampler, config, out):
                    advance(done.chats / config.chats, _words(done, config.chats))
        except KeyboardInterrupt:
            whole = len(list(out.glob(f"{PART}*.npz")))
            click.echo(f"{out} keeps {whole} whole parts: the same command goes on", err=True)
            return 130
    click.echo(f"{out}: {config.chats:,} chats, {done.answer_tokens:,} answer tokens sampled now")
    return 0


def _words(done: Done, chats: int) -> str:
    return f"{done.path.name}  {done.chats:,} of {chats:,} chats, {done.answer_tokens:,} answer tokens"
