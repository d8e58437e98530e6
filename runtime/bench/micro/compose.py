"""Time from words to a checked and traced configuration, as every command and every start-up pays it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from mtrun.runtime.bench.micro.case import Case, Timed, hold

WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "nothing typed": (),
        "a profile": ("profile=exact-stock",),
        "a law with its knob": ("profile=cascade-tokenv3", "cascade.alpha=0.9", "pack=nano"),
    }
)


def cases() -> tuple[Case, ...]:
    """Each list of words."""
    return tuple(Case("compose", name, partial(_setup, words)) for name, words in WORDS.items())


def _setup(words: tuple[str, ...]) -> Timed:
    from mtrun.runtime.config.compose import compose

    return Timed(partial(compose, words), lambda found: hold(found.overrides == words, "its words are not those typed"))
