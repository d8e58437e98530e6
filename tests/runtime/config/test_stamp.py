from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from omegaconf.errors import OmegaConfBaseException, ReadonlyConfigError

from mtrun.lanes.catalogue import LANE_NAMES
from mtrun.runtime.config.compose import compose, explicit_lanes
from mtrun.runtime.config.provenance import Origin
from mtrun.runtime.config.schema import RunConfig
from mtrun.runtime.config.stamp import freeze, is_stamped, lane_decided_by, lane_value, resolved, stamp
from mtrun.runtime.errors import ConfigurationError, StampError

ALL = dict.fromkeys(LANE_NAMES, True)


def test_a_read_before_the_stamp_raises_in_every_form() -> None:
    run = compose([])
    assert not is_stamped(run)
    for name in LANE_NAMES:
        with pytest.raises(StampError, match=f"lanes.{name} was read before"):
            lane_value(run, name)
        with pytest.raises(OmegaConfBaseException):
            _ = run.config.lanes[name]
    with pytest.raises(StampError):
        resolved(run)
    with pytest.raises(StampError):
        freeze(run)


def test_after_the_stamp_every_lane_reads_what_was_stamped() -> None:
    run = compose([])
    stamp(run, {**ALL, "kv_q8": False}, {"frspec": "the pack ships a draft vocabulary"})
    assert {name: lane_value(run, name) for name in LANE_NAMES} == {**ALL, "kv_q8": False}
    assert {name: run.config.lanes[name] for name in LANE_NAMES} == {**ALL, "kv_q8": False}
    assert str(lane_decided_by(run, "frspec")) == "auto-arm (the pack ships a draft vocabulary)"


@pytest.mark.parametrize(
    ("words", "origin"), [(["lanes.frspec=false"], Origin.COMMAND_LINE), (["lanes=none"], Origin.GROUP_FILE)]
)
def test_an_explicit_lane_wins_over_the_stamp(words: list[str], origin: Origin) -> None:
    run = compose(words)
    assert lane_value(run, "frspec") is False
    stamp(run, ALL)
    assert lane_value(run, "frspec") is False
    assert resolved(run).lanes["frspec"] is False
    assert lane_decided_by(run, "frspec").origin is origin


def test_profile_user_file_and_command_line_switch_a_lane_and_the_last_wins(write_profile: Callable[..., Path]) -> None:
    folder = write_profile("mine", "defaults: [exact-stock, _self_]\nlanes: {kv_q8: true}\n")
    assert explicit_lanes(compose(["profile=exact-stock"]))["kv_q8"] is False
    user = compose(["profile=mine"], config_dir=folder)
    assert (lane_value(user, "kv_q8"), lane_decided_by(user, "kv_q8").origin) == (True, Origin.USER_FILE)
    typed = compose(["profile=mine", "lanes.kv_q8=false"], config_dir=folder)
    assert (lane_value(typed, "kv_q8"), lane_decided_by(typed, "kv_q8").origin) == (False, Origin.COMMAND_LINE)


def test_a_stamp_is_whole_and_written_once() -> None:
    run = compose([])
    with pytest.raises(StampError, match="missing"):
        stamp(run, {"frspec": True})
    with pytest.raises(StampError, match="unknown"):
        stamp(run, {**ALL, "nope": True})
    with pytest.raises(StampError, match="bools"):
        stamp(run, {**ALL, "frspec": 1})  # type: ignore[dict-item]
    assert not is_stamped(run)
    stamp(run, ALL)
    with pytest.raises(StampError, match="already"):
        stamp(run, ALL)


def test_nothing_can_be_written_after_the_freeze() -> None:
    run = compose([])
    stamp(run, ALL)
    freeze(run)
    with pytest.raises(ReadonlyConfigError):
        run.config.stamp.frspec = False


def test_an_unknown_lane_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no lane 'nope'"):
        lane_value(compose([]), "nope")


def test_the_resolved_tree_is_typed_and_frozen() -> None:
    run = compose(["profile=cascade-tokenv3", "engine.memory_limit=8GiB", "draft.depth=2"])
    stamp(run, ALL)
    config = resolved(run)
    assert isinstance(config, RunConfig)
    assert (config.acceptance.law.value, config.cascade.rule, config.cascade.alpha) == ("cascade", "tokenv3", 0.95)
    assert config.engine.memory_limit_bytes == 8 * 2**30
    assert config.lanes == ALL
    with pytest.raises(FrozenInstanceError):
        config.draft.depth = 1  # type: ignore[misc]


SERVED_ORDER = """
import importlib, pkgutil
import mtrun.kernels, mtrun.lanes, mtrun.runtime
for package in (mtrun.lanes, mtrun.kernels, mtrun.runtime):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if importlib.util.find_spec(module.name).origin.endswith(".py"):
            importlib.import_module(module.name)
from mtrun.runtime.config.compose import compose
from mtrun.runtime.config.stamp import lane_value, stamp
from mtrun.lanes.catalogue import LANE_NAMES
for wanted in (True, False):
    run = compose(["profile=turbo"])
    stamp(run, dict.fromkeys(LANE_NAMES, wanted))
    assert {lane_value(run, name) for name in LANE_NAMES} == {wanted}
"""


def test_served_order_no_module_keeps_a_lane_from_before_the_stamp() -> None:
    done = subprocess.run([sys.executable, "-c", SERVED_ORDER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
