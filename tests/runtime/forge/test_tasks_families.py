"""Every family: its own answers pass, wrong ones fail, seeds repeat, held-out content is never trained on."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.forge.nano_recipe import NanoConfig, tasks_at
from mtrun.runtime.forge.tasks import catalogue, columns, functions
from mtrun.runtime.forge.tasks.contract import Task, held_out

FAST = [name for name in catalogue.FAMILIES if name != "functions"]  # functions start a process a check


def tasks(name: str, count: int, seed: int = 1) -> list[Task]:
    rng = random.Random(seed)
    return [catalogue.draw(rng, name, i % catalogue.FAMILIES[name].levels) for i in range(count)]


@pytest.mark.parametrize("name", FAST)
def test_a_generated_answer_is_right(name: str) -> None:
    for task in tasks(name, 300):
        assert catalogue.check(task, task.answer).ok, task


@pytest.mark.parametrize("name", FAST)
def test_the_answer_of_another_task_is_wrong(name: str) -> None:
    made = tasks(name, 120)
    for task, other in pairwise(made):
        if task.expect != other.expect and name != "copying":
            assert not catalogue.check(task, other.answer).ok, (task, other)


@pytest.mark.parametrize("name", list(catalogue.FAMILIES))
def test_equal_seeds_give_equal_tasks_and_others_differ(name: str) -> None:
    assert tasks(name, 20) == tasks(name, 20)
    assert tasks(name, 20) != tasks(name, 20, seed=2)


@pytest.mark.parametrize("name", [name for name in catalogue.FAMILIES if name != "copying"])
def test_wording_is_free(name: str) -> None:
    """The same words do not open every question or every answer."""
    made = tasks(name, 200)
    assert len({task.prompt.split()[0] for task in made}) >= 4
    assert len({task.answer.split()[0] for task in made}) >= 4


@pytest.mark.parametrize("name", ["addition", "subtraction"])
@pytest.mark.parametrize("level", range(len(columns.LEVELS)))
def test_columns_are_worked_right(name: str, level: int) -> None:
    """Every equation of the working holds, and the digits written down are the result's."""
    rng = random.Random(3)
    for _ in range(100):
        task = catalogue.draw(rng, name, level)
        written = []
        for line in task.answer.split("\n")[2:-1]:
            if "=" in line:
                terms, result = line.split(": ")[1].split(",")[0].split("=")
                assert eval(terms) == int(result), line
                written.append(re.findall(r"\d", line.split(", ")[1])[0])
            else:
                written.append(line.split(": ")[1])
        assert int("".join(reversed(written))) == task.expect
        assert abs(task.expect) < 2000


@pytest.mark.parametrize("text", ["", "no number", "The answer is 12345."])
def test_an_answer_without_the_number_is_wrong(text: str) -> None:
    task = tasks("addition", 1)[0]
    assert not catalogue.check(task, text).ok


@pytest.mark.parametrize("text", ["[1, 2", "[]", "[1, x]", "3, 1, 2", "[1, 2, 3] [9]"])
def test_a_list_that_is_not_the_one_asked_for_is_wrong(text: str) -> None:
    task = Task("lists", 0, "Sort [3, 1, 2].", "[1, 2, 3]", "k", [1, 2, 3])
    assert catalogue.check(task, "It is [1, 2, 3].").ok
    assert not catalogue.check(task, text).ok


@pytest.mark.parametrize("name", list(functions._KINDS))
def test_every_body_of_every_kind_passes_its_tests(name: str) -> None:
    """In this process: the bodies are ours. A neighbour's body must fail at least one of the tests."""
    kind = functions._KINDS[name]
    for body in kind.bodies:
        text = body.format(k=3, x=kind.names[0], y=kind.second[0] if kind.second else "")
        lines = text.split("\n") if body.startswith(("if ", "total =")) else [f"return {text}"]
        parameters = ", ".join((kind.names[0], *kind.second[:1]))
        space: dict = {}
        exec(f"def f({parameters}):\n" + "\n".join(f"    {line}" for line in lines), space)
        for given in kind.inputs:
            got, wanted = space["f"](*given), kind.truth(3, *given)
            assert got == wanted, (body, given)
            assert type(got) is type(wanted), (body, given)


def test_generated_functions_pass_in_the_sandbox_and_broken_ones_do_not() -> None:
    for task in tasks("functions", 6):
        assert catalogue.check(task, task.answer).ok, task
        assert catalogue.check(task, f"Of course:\n```python\n{functions.code_of(task.answer)}\n```").ok
        assert not catalogue.check(task, functions.code_of(task.answer).split("\n")[0] + "\n    return None").ok
        assert not catalogue.check(task, "I do not know.").ok


def test_the_held_out_set_is_fixed_and_covers_every_graded_family() -> None:
    held = catalogue.held_set()
    assert held == catalogue.held_set()
    assert len({task.key for task in held}) == len(held) == catalogue.HELD_TASKS
    counts = Counter(task.family for task in held)
    assert set(counts) == {name for name, family in catalogue.FAMILIES.items() if family.graded}
    assert max(counts.values()) - min(counts.values()) <= 1


def test_asking_for_more_held_out_tasks_than_there_are_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_HELD_LEVELS", {"word_problems": (0,)})
    assert len(catalogue.held_set(5)) == 5
    with pytest.raises(ConfigurationError, match="ask for fewer"):
        catalogue.held_set(50)


def test_no_training_task_is_held_out() -> None:
    held = {task.key for task in catalogue.held_set()}
    trained = [task for step in range(0, 4000, 100) for task in tasks_at(NanoConfig(), step)]
    assert all(held_out(key) for key in held)
    assert not any(held_out(task.key) for task in trained)
    assert not held & {task.key for task in trained}


def test_the_split_reads_content_and_not_wording() -> None:
    task = tasks("addition", 1)[0]
    assert held_out(replace(task, prompt="Other words", answer="").key) == held_out(task.key)


def test_data_are_a_function_of_seed_and_step() -> None:
    assert tasks_at(NanoConfig(), 7) == tasks_at(NanoConfig(), 7)
    assert tasks_at(NanoConfig(), 7) != tasks_at(NanoConfig(), 8)
    assert tasks_at(NanoConfig(), 7) != tasks_at(NanoConfig(seed=1), 7)
