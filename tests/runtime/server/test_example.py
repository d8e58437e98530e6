"""The example script against a served engine: what a newcomer runs first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[3] / "examples" / "openai_chat.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_example_prints_the_answer_the_law_and_the_counts(served: Any) -> None:
    done = run("--url", f"{served.url}/v1", "hello there")
    assert done.returncode == 0, done.stderr
    assert "HELLO THERE" in done.stdout
    assert "cascade rule=tokenv3 alpha=0.95 (NOT distribution-exact)" in done.stdout
    assert "accepted=" in done.stdout
    assert "11 prompt + 11 completion tokens" in done.stdout


def test_the_example_says_what_to_do_when_nothing_answers() -> None:
    done = run("--url", "http://127.0.0.1:9/v1")
    assert done.returncode == 1
    assert "make run" in done.stderr
    assert "Traceback" not in done.stderr
