"""Time from words to a checked and traced configuration, as every command and every start-up pays it."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from mtrun.runtime.config.compose import compose

WORDS = {
    "nothing typed": (),
    "a profile": ("profile=exact-stock",),
    "a law with its knob": ("profile=cascade-tokenv3", "cascade.alpha=0.9", "pack=nano"),
}


@pytest.mark.parametrize("words", WORDS)
def test_composing(benchmark: BenchmarkFixture, words: str) -> None:
    benchmark.group = "compose"
    composed = benchmark(compose, WORDS[words])
    assert composed.overrides == WORDS[words]
