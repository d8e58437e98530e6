"""The short facts are data that a comparison rests on: many, distinct, and not answered by their own questions."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

import mtrun.runtime.evaluate as evaluate

FACTS = Path(evaluate.__file__).parent / "sets" / "facts.jsonl"


def facts() -> list[dict]:
    return [json.loads(line) for line in FACTS.read_text(encoding="utf-8").splitlines()]


def words(text: str) -> str:
    """Lower-case words between single spaces, so that `in` finds whole words alone."""
    return " " + " ".join(re.findall(r"[^\W_]+", text.lower())) + " "


def test_there_are_enough_of_them_in_enough_families() -> None:
    sizes = Counter(fact["family"] for fact in facts())
    assert sum(sizes.values()) >= 300
    assert len(sizes) >= 8
    assert min(sizes.values()) >= 12, "a family of fewer says nothing"


def test_ids_and_questions_are_distinct() -> None:
    for key in ("id", "question"):
        assert [found for found, count in Counter(fact[key].lower() for fact in facts()).items() if count > 1] == []


@pytest.mark.parametrize("fact", facts(), ids=lambda fact: fact["id"])
def test_a_fact_is_well_formed(fact: dict) -> None:
    assert set(fact) == {"id", "family", "question", "answers"}
    assert re.fullmatch(r"[a-z0-9-]+", fact["id"])
    assert fact["question"].endswith("?")
    assert fact["question"].isprintable()
    assert fact["answers"]
    assert len({answer.lower() for answer in fact["answers"]}) == len(fact["answers"])
    for answer in fact["answers"]:
        assert words(answer).strip(), "an answer of no word matches nothing"
        assert words(answer) not in words(fact["question"]), f"the question says {answer} itself"


def test_the_comparison_of_whole_words_sees_a_repeated_answer() -> None:
    assert words("New Delhi") in words("Is New Delhi large?")
    assert words("art") not in words("Where are parts made?")
