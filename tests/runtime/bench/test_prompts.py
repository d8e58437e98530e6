"""Prompts of a run, and prompts built up to an exact length."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrun.runtime.bench.plan import PROMPT_LIMIT
from mtrun.runtime.bench.prompts import SHIPPED, fitted, long_prompt_ids, prompt_ids, read_prompts
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.packs.embedded import embedded_packs
from mtrun.runtime.packs.tokenizer import PackTokenizer
from support.sources import ROOT

PROMPTS = read_prompts(SHIPPED)


@pytest.fixture(scope="module")
def tokenizer() -> PackTokenizer:
    return PackTokenizer(embedded_packs()["nano"])


def test_the_shipped_prompts_are_the_free_form_ones_of_the_benchmarks() -> None:
    assert SHIPPED.read_bytes() == (ROOT / "benchmarks" / "freeform.txt").read_bytes()
    assert len(PROMPTS) >= 8


@pytest.mark.parametrize("length", [40, 64, 300, 1024])
@pytest.mark.parametrize("first", [0, 5])
def test_a_long_prompt_has_exactly_the_tokens_asked_for(tokenizer: PackTokenizer, length: int, first: int) -> None:
    ids = long_prompt_ids(tokenizer, PROMPTS, first, length)
    short = prompt_ids(tokenizer, PROMPTS[first])
    assert len(ids) == length
    assert ids[:10] == short[:10], "it starts with the prompt of its number, in the chat's own form"
    assert ids[-2:] == short[-2:], "the template's end is kept"


def test_two_prompts_of_one_length_differ(tokenizer: PackTokenizer) -> None:
    assert long_prompt_ids(tokenizer, PROMPTS, 0, 200) != long_prompt_ids(tokenizer, PROMPTS, 1, 200)
    with pytest.raises(ConfigurationError, match="chat template"):
        long_prompt_ids(tokenizer, PROMPTS, 0, 2)


@settings(deadline=None)
@given(st.sets(st.integers(1, 100), min_size=1), st.integers(1, 100))
def test_a_context_is_cut_to_the_room_once_and_refused_above(contexts: set[int], room: int) -> None:
    rungs = sorted(contexts)
    lengths = [fitted(asked, rungs, room) for asked in rungs]
    measured = [length for length in lengths if length is not None]
    assert measured == sorted(set(measured)), "no length is measured twice"
    assert all(length <= room for length in measured)
    assert all(length == asked for asked, length in zip(rungs, lengths, strict=True) if asked <= room)
    assert measured, "the smallest context is always measured"


def test_a_prompt_file_that_holds_nothing_or_too_much_says_so(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    for text, part in (("\n\n", "holds no prompt"), ("x\n" * (PROMPT_LIMIT + 1), "keep at most")):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=part):
            read_prompts(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_prompts(tmp_path / "absent.txt")
