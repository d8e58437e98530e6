"""Short questions of general knowledge, each with the answers that are accepted.

A fact stands in the first words of an answer or nowhere, and a chat model likes to go on: the answer's beginning is
judged, whether the model has come to an end or not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mtrun.runtime.evaluate.contract import TaskSet
from mtrun.runtime.evaluate.sets.file import read_set

MAX_TOKENS = 28
FILE = Path(__file__).with_name("facts.jsonl")


def open_facts() -> TaskSet:
    """The questions that ship with mtrun. Raises ConfigurationError where the file is damaged."""
    return replace(read_set(FILE, "facts", MAX_TOKENS, asked="question", family="facts"), excerpt=True)
