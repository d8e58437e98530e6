"""One session of a micro run: every part that the folder lacks, each timed in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mtrun.runtime.bench.micro.folder import MicroFolder
from mtrun.runtime.bench.micro.timed import ANSWER
from mtrun.runtime.environment import child_environment
from mtrun.runtime.errors import ConfigurationError, MtrunError
from mtrun.runtime.measure.store import read_json

NEEDED = ("pytest", "pytest_benchmark")


class TimingError(MtrunError):
    """The process that times a part ended without an answer."""


def check_timer() -> None:
    """Raises ConfigurationError where pytest-benchmark is absent."""
    if any(find_spec(name) is None for name in NEEDED):
        raise ConfigurationError("micro is timed by pytest-benchmark: pip install 'pytest-benchmark>=4,<6'")


def measure(folder: MicroFolder, preflight: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Times what the folder lacks. A part whose process dies is left out with its reason, and the run goes on."""
    lacking = folder.parts_lacking()
    if not lacking:
        say("every part is measured already")
        return
    folder.begin(preflight)
    try:
        for number, part in enumerate(lacking, 1):
            say(f"{number}/{len(lacking)} {part}: {folder.data['cells'][part]['label']}")
            try:
                folder.keep(part, time_apart(part, folder.data["plan"]))
            except TimingError as error:
                say(f"{part} is left out: {error}")
                folder.skip(part, str(error))
    finally:
        folder.close_session()


def time_apart(part: str, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cases of a part as a process of its own measured them. Raises TimingError; stops the process if stopped."""
    with TemporaryDirectory(prefix="mtrun-micro-") as name:
        work, log = Path(name) / "work", Path(name) / "log"
        work.mkdir()
        sizes = [str(plan[key]) for key in ("rounds", "seconds", "round_seconds")]
        command = [sys.executable, "-m", "mtrun.runtime.bench.micro.timed", part, str(work), *sizes]
        # Other plugins and options of whoever runs this would be measured too.
        environment = child_environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS="", PYTEST_PLUGINS="")
        with log.open("wb") as output:
            child = subprocess.Popen(
                command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            try:
                child.wait()
            finally:
                child.kill()
                child.wait()
        if child.returncode or not (work / ANSWER).is_file():
            raise TimingError(f"its process ended with {child.returncode}{_last(log)}")
        return read_json(work / ANSWER)["cases"]


def _last(log: Path) -> str:
    """The last line that a process said."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f" ({lines[-1].strip()})" if lines else ""
