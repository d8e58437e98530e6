"""A busy machine is refused; everything else is recorded and told."""

from pathlib import Path
from typing import Any

import pytest

from mtrun.runtime.bench import preflight
from mtrun.runtime.bench.preflight import BusyError, check, look
from mtrun.runtime.cli import main as cli

QUIET: dict[str, Any] = {"in_use": 0.4, "load": [9.0, 9.0, 9.0], "cores": 2, "on_battery": None, "throttled": None}


def test_a_quiet_machine_is_told_nothing_whatever_ran_a_minute_ago() -> None:
    assert check(QUIET, busy_ok=False) == []
    assert check({**QUIET, "load": None}, busy_ok=False) == []


def test_a_busy_machine_is_refused_with_what_to_do_unless_allowed() -> None:
    busy = {**QUIET, "in_use": 0.51, "load": [0.0, 0.0, 0.0]}
    with pytest.raises(BusyError, match=r"0\.5 of 2 cores in use\): wait until less than 0\.5 are, or add --busy-ok"):
        check(busy, busy_ok=False)
    assert "too low" in check(busy, busy_ok=True)[0]


def test_a_battery_and_a_throttled_processor_are_told() -> None:
    told = check({**QUIET, "on_battery": True, "throttled": 3}, busy_ok=False)
    assert "battery" in told[0]
    assert "3 times" in told[1]


def test_what_the_machine_says_is_json(tmp_path: Path) -> None:
    found = look()
    assert found["cores"] >= 1
    assert 0 <= found["in_use"] <= found["cores"]
    assert found["free_bytes"] > 0
    folder = tmp_path / "cpu0" / "thermal_throttle"
    folder.mkdir(parents=True)
    (folder / "core_throttle_count").write_text("7\n")
    assert preflight._throttled(tmp_path) == 7
    assert preflight._throttled(tmp_path / "absent") is None


def test_the_command_ends_with_one_on_a_busy_machine_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "look", lambda: {**QUIET, "in_use": 1.9})
    assert cli.main(["bench", "pack=nano", "--out", str(tmp_path / "run")]) == 1
    assert "add --busy-ok" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
