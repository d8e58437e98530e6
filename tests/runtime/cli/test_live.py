from __future__ import annotations

import io

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from mtrun.runtime.cli.live import LiveReply


def show(pieces: list[str], width: int = 40) -> str:
    """What stays on a terminal of that width after the reply has ended."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, width=width)
    with LiveReply("tiny | exact", console) as reply:
        for piece in pieces:
            reply.push(piece, 1)
    return out.getvalue()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.sampled_from("ab \n")), max_size=12))
def test_every_word_stays_on_the_screen_once_and_in_order(pieces: list[str]) -> None:
    assert show(pieces, width=8).split() != [] or not "".join(pieces).split()
    assert "".join(show(pieces, width=8).split()) == "".join("".join(pieces).split())


def test_markup_in_a_reply_is_text() -> None:
    assert "[bold]x[/bold]" in show(["[bold]", "x[/bold]"])


def test_the_status_names_speed_and_law() -> None:
    reply = LiveReply("smollm2 | cascade alpha=0.9")
    assert "reading the prompt" in reply.status()
    reply.push("a", 1)
    reply.push("b", 3)
    assert "4 tokens" in reply.status()
    assert "tok/s" in reply.status()
    assert "cascade alpha=0.9" in reply.status()
