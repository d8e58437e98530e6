"""`mtrun generate`: one prompt, streamed to the terminal, with the law and the speed beside it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from mtrun.runtime.cli.hydra_flags import configured_command
from mtrun.runtime.config.compose import Composed
from mtrun.runtime.errors import ConfigurationError, RequestError

if TYPE_CHECKING:
    from mtrun.runtime.engine import Engine
    from mtrun.runtime.requests import Event, Finished


@configured_command("generate", words=True)
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Stop after N tokens.")
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the pack's chat template.")
def generate(composed: Composed, words: tuple[str, ...], max_tokens: int | None, raw: bool) -> int:
    """Generate from one prompt: the words given, or standard input."""
    from mtrun.runtime.engine import Engine

    prompt = " ".join(words) if words else _read_stdin()
    with Engine(composed) as engine:
        asked = prompt if raw else [{"role": "user", "content": prompt}]
        try:
            finished = _show(engine, engine.stream(asked, max_tokens=max_tokens))
        except RequestError as error:
            raise ConfigurationError(str(error)) from error
        from mtrun.runtime.acceptance.line import accept_line

        click.echo(f"{_badge(engine, finished)}\n{accept_line(finished.law, finished.counts)}", err=True)
    return 0


def _read_stdin() -> str:
    if sys.stdin.isatty():
        raise ConfigurationError('there is no prompt: type mtrun generate "your question", or pipe text in')
    text = sys.stdin.read().strip()
    if not text:
        raise ConfigurationError("standard input is empty: pipe the prompt in")
    return text


def _show(engine: Engine, events: Iterator[Event]) -> Finished:
    """Streams the text to standard output; on a terminal a status line with speed and law runs along below it."""
    if sys.stdout.isatty():
        from mtrun.runtime.cli.live import LiveReply
        from mtrun.runtime.cli.serve import describe_law

        with LiveReply(f"{engine.model_id} | {describe_law(engine.law())}") as reply:
            return _drain(events, reply.push)
    finished = _drain(events, lambda text, tokens: click.echo(text, nl=False))
    click.echo()
    return finished


def _drain(events: Iterator[Event], push: Callable[[str, int], None]) -> Finished:
    from mtrun.runtime.requests import Chunk, Finished

    for event in events:
        if isinstance(event, Chunk):
            push(event.text, len(event.token_ids))
        elif isinstance(event, Finished):
            return event
    raise RuntimeError("the reply ended without its last event")


def _badge(engine: Engine, finished: Finished) -> str:
    from mtrun.runtime.cli.serve import describe_law

    seconds = max(finished.decode_seconds, 1e-9)
    speed = f"{max(finished.completion_tokens - 1, 0) / seconds:.1f} tok/s"
    return f"{engine.model_id} | {describe_law(engine.law())} | {finished.completion_tokens} tokens, {speed}"
