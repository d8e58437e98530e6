"""The process that times one part: pytest with pytest-benchmark over a file that names the part's cases.

Run as `python -m mtrun.runtime.bench.micro.timed PART FOLDER ROUNDS SECONDS ROUND_SECONDS`; FOLDER is empty, and holds
ANSWER when this ends well. Everything of pytest stays in this process: its plugins, its options, and its collection.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtrun.runtime.bench.micro.case import Case, UnavailableError
from mtrun.runtime.bench.micro.record import spread, stored
from mtrun.runtime.measure.machine import load
from mtrun.runtime.measure.store import write_json

ANSWER = "cases.json"
_TIMES = "times.json"
# A file of pytest's that holds nothing of its own: the cases are the package's, whether installed or in a checkout.
_FILE = """\
import pytest
from mtrun.runtime.bench.micro.case import cases_of
from mtrun.runtime.bench.micro.timed import time_case

@pytest.mark.parametrize("number", range(len(cases_of({part!r}))))
def test_a_case(benchmark, record_property, number):
    time_case(benchmark, record_property, number, cases_of({part!r})[number])
"""


def time_case(benchmark: Any, record_property: Any, number: int, case: Case) -> None:
    """One case under pytest-benchmark's fixture; what this machine has not is skipped with its reason."""
    import pytest

    record_property("case", number)
    try:
        timed = case.setup()
    except UnavailableError as error:
        record_property("skipped", str(error))
        pytest.skip(str(error))
    benchmark.extra_info |= {"case": number, "about": dict(timed.about), "load": load()}
    timed.check(benchmark(timed.call))


class Outcomes:
    """A plugin of pytest: why cases have no figures. It spares pytest-benchmark a look at machine and checkout."""

    def __init__(self) -> None:
        self.skipped: dict[int, str] = {}
        self.errors: dict[int, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest for each phase of a test."""
        told = dict(report.user_properties)
        if report.skipped and "skipped" in told:
            self.skipped[told["case"]] = told["skipped"]
        elif report.failed and "case" in told:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.errors[told["case"]] = str(getattr(crash, "message", report.longrepr)).splitlines()[0]

    def pytest_benchmark_generate_machine_info(self, config: Any) -> dict[str, Any]:
        """run.json has it."""
        return {}

    def pytest_benchmark_generate_commit_info(self, config: Any) -> dict[str, Any]:
        """run.json has it."""
        return {}


def time_part(part: str, folder: Path, rounds: int, seconds: float, round_seconds: float) -> list[dict[str, Any]]:
    """Times every case of a part; `folder` is empty. Raises RuntimeError where pytest could not run them."""
    import pytest

    from mtrun.runtime.bench.micro.case import cases_of

    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")  # so that none further up is read
    file = folder / "test_micro.py"
    file.write_text(_FILE.format(part=part), encoding="utf-8")
    words = ["-q", "-p", "no:cacheprovider", "-p", "pytest_benchmark.plugin", "--benchmark-json", str(folder / _TIMES)]
    words += ["--benchmark-min-rounds", str(rounds), "--benchmark-max-time", str(seconds)]
    words += ["--benchmark-min-time", str(round_seconds), "--benchmark-storage", f"file://{folder}"]
    outcomes = Outcomes()
    code = pytest.main([str(file), *words], plugins=[outcomes])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {code!r}")
    text = (folder / _TIMES).read_text(encoding="utf-8")
    times = {one["extra_info"]["case"]: one for one in (json.loads(text)["benchmarks"] if text else [])}
    return [_told(case, number, times, outcomes) for number, case in enumerate(cases_of(part))]


def _told(case: Case, number: int, times: dict[int, Any], outcomes: Outcomes) -> dict[str, Any]:
    skipped, error = outcomes.skipped.get(number), outcomes.errors.get(number)
    found = None if error else times.get(number)
    if found is None and not (skipped or error):
        error = "pytest-benchmark measured nothing"
    info = found["extra_info"] if found else {"about": {}, "load": None}
    rounds = stored(found["stats"]["data"]) if found else []
    return {
        "group": case.group,
        "name": case.name,
        "about": info["about"],
        "load": info["load"],
        "skipped": skipped,
        "error": error,
        "iterations": found["stats"]["iterations"] if found else None,
        **spread(rounds),
        "rounds": rounds,
    }


def main(words: Sequence[str]) -> int:
    """The process."""
    part, folder, rounds, seconds, round_seconds = words
    cases = time_part(part, Path(folder), int(rounds), float(seconds), float(round_seconds))
    write_json(Path(folder) / ANSWER, {"cases": cases}, compact=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
