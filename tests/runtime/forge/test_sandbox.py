"""Hostile code ends with one sentence, whatever it tries; right and wrong functions are told apart."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from mtrun.runtime.forge.tasks.sandbox import Limits, Ran, run_tests

FAST = Limits(cpu_seconds=1, wall_seconds=4.0)


def run(body: str, wanted: object = 1, limits: Limits = FAST) -> Ran:
    """`body` as the function's lines, called without arguments."""
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    return run_tests(f"def f():\n{lines}", "f", [[[], wanted]], limits)


def test_a_right_function_passes_every_test() -> None:
    ran = run_tests("def f(a, b):\n    return a + b", "f", [[[1, 2], 3], [[0, 0], 0]], FAST)
    assert ran == Ran(True, "all 2 tests pass.", ran.network)


def test_a_wrong_value_is_named_with_its_call() -> None:
    ran = run_tests("def f(a):\n    return a", "f", [[[1], 1], [[2], 3]], FAST)
    assert ran.reason == "f(2) gave 2, not 3."


@pytest.mark.parametrize(("body", "wanted"), [("return True", 1), ("return 1.0", 1), ("return (1,)", [1])])
def test_a_value_of_another_type_is_wrong(body: str, wanted: object) -> None:
    assert not run(body, wanted).ok


def test_a_value_that_claims_to_equal_everything_is_wrong() -> None:
    assert not run("class A:\n    def __eq__(self, other):\n        return True\nreturn A()").ok


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("while True:\n    pass", "CPU time"),
        ("x = 'a' * 10**10\nreturn 1", "ran out of memory"),
        ("x = []\nwhile True:\n    x.append(bytearray(10**7))", "ran out of memory"),
        ("import os\nwhile True:\n    os.fork()", "PermissionError"),
        ("import subprocess\nsubprocess.run(['true'])\nreturn 1", "PermissionError|ModuleNotFoundError"),
        (
            "import threading\nthreading.Thread(target=print).start()\nreturn 1",
            "can't start new thread|ModuleNotFoundError",
        ),
        ("open('x', 'w').write('a')\nreturn 1", "writing a file"),
        ("import os\nos.open('x', os.O_CREAT | os.O_WRONLY)\nreturn 1", "writing a file"),
        ("return open('/etc/passwd').read()", "reading a file"),
        ("import socket\nsocket.socket()\nreturn 1", "PermissionError|ModuleNotFoundError"),
        ("import sys\nsys.exit(0)", "asked to exit"),
        ("raise ValueError('a\\nb')", "raised ValueError: a b"),
        ("return f()", "RecursionError"),
        ("import os\nos.kill(os.getppid(), 9)\nreturn 1", "PermissionError"),
        ("import os\nos._exit(0)", "no result"),
        ("import os\nos.abort()", "stopped by signal"),
    ],
)
def test_hostile_code_ends_with_one_sentence(body: str, words: str) -> None:
    ran = run(body)
    assert not ran.ok
    assert re.search(words, ran.reason)  # a bare interpreter may not even find the module
    assert "\n" not in ran.reason
    assert ran.reason.endswith(".")


def test_sleeping_is_ended_by_the_wall_clock() -> None:
    started = time.monotonic()
    ran = run("import time\ntime.sleep(60)\nreturn 1", limits=Limits(wall_seconds=1.0))
    assert "longer than 1 s" in ran.reason
    assert time.monotonic() - started < 10


def test_what_the_code_prints_is_no_result() -> None:
    assert run("print('{\"ok\": true}' * 10**6)\nreturn 2").reason == "f() gave 2, not 1."


def test_the_environment_is_empty_and_the_folder_too() -> None:
    os.environ["MTRUN_API_KEY"] = "secret"
    try:
        assert run("import os\nreturn [k for k in os.environ if k != 'LC_CTYPE']", []).ok
    finally:
        del os.environ["MTRUN_API_KEY"]
    assert run("import os\nreturn os.path.basename(os.getcwd()).startswith('mtrun-sandbox-')", True).ok


def test_code_that_does_not_compile_is_a_verdict() -> None:
    assert "SyntaxError" in run_tests("def f(:", "f", [[[], 1]], FAST).reason


def test_an_absent_function_is_a_verdict() -> None:
    assert run_tests("g = 1", "f", [[[], 1]], FAST).reason == "the code defines no function f."


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run("while True:\n    pass")
    assert list(tmp_path.iterdir()) == []


def test_how_the_network_is_kept_away_is_said() -> None:
    assert run("return 1").network.startswith(("namespace", "blocked in the interpreter"))
