"""A run that was killed in the middle is completed: no window twice, none lost, the same words as without the kill."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mtrun.runtime.bench.folder import RunFolder
from mtrun.runtime.bench.plan import schedule
from mtrun.runtime.bench.summary import summarise
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure.store import read_setting

SEEDS = 24
PATIENCE = 120.0  # seconds


def start(pack: Path, out: Path, *words: str) -> subprocess.Popen[str]:
    cells = ["--cell", "plain=draft.depth=0", "--cell", "exact=draft.depth=3", "--cell", "odd=draft.depht=1"]
    sizes = ["--seeds", str(SEEDS), "--tokens", "24", "--busy-ok", "--out", str(out)]
    command = [sys.executable, "-m", "mtrun.runtime.cli.main", "bench", f"pack={pack}", *cells, *sizes, *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> int:
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, said  # for the cell that cannot be composed
    return process.returncode


def counted(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "windows").glob("*.r0.json")}


def unchanging(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary without what time and memory decide."""
    kept = ("cell", "windows", "seeds", "counts", "rates", "digest", "tokens_per_cycle", "nll", "nll_gap")
    return {
        "cells": [{name: row[name] for name in kept} for row in summary["cells"]],
        "counted": summary["windows"]["counted"],
        **{name: summary[name] for name in ("plan_sha256", "unequal_n", "skipped", "missing")},
    }


@pytest.mark.slow
def test_a_run_killed_in_the_middle_is_completed(pack: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(pack, whole))
    process = start(pack, killed)
    deadline = time.monotonic() + PATIENCE
    while len(counted(killed)) < 5:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "nothing was measured"
        time.sleep(0.002)
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    before = counted(killed)
    assert 5 <= len(before) < 2 * SEEDS, "it was killed in the middle"
    interrupted = RunFolder.read(killed)
    assert interrupted.data["sessions"][0]["ended"] is None
    assert summarise(killed)["windows"]["counted"] == len(before)
    (killed / "windows" / ".exact.s9.p1.r0.json.77").write_text("{ half")

    finish(start(pack, killed, "--resume"))
    after = counted(killed)
    assert after.keys() == counted(whole).keys()
    assert {name: after[name] for name in before} == before, "a window was measured twice"
    run = RunFolder.read(killed)
    assert [session["ended"] is None for session in run.data["sessions"]] == [True, False]
    assert {slot.file for slot in run.lacking()} == {s.file for s in schedule(run.plan) if s.cell == "odd"}
    assert unchanging(summarise(killed)) == unchanging(summarise(whole))
    sessions = {window["session"] for window in run.windows() if not window["warm_up"]}
    assert sessions == {0, 1}
    assert sum(window["warm_up"] and "split" not in window for window in run.windows()) == 4, "each session warms up"


def test_a_session_that_would_measure_something_else_is_refused(sweep: Any) -> None:
    folder = RunFolder.read(sweep.path)
    setting = read_setting(sweep.path, folder.data["cells"]["exact"]["setting"])
    other = {
        "another configuration": {"config_sha256": "0" * 64},
        "another pack": {"pack": {**setting["pack"], "name": "other"}},
        "other code": {"code": {**setting["code"], "source_sha256": "0" * 64}},
    }
    for part, change in other.items():
        with pytest.raises(ConfigurationError, match=part):
            folder.settle("exact", {**setting, **change})
    again = {**setting, "machine": {**setting["machine"], "cpu_mhz": 1}, "code": {**setting["code"], "commit": "later"}}
    name, kept = folder.settle("exact", again)
    assert kept == setting, "its windows keep to the first session's verdicts"
    assert read_setting(sweep.path, name) == again
