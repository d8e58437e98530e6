"""Every YAML file of the product composes, and every profile has the law and the lanes that it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import mtrun.conf
from mtrun.lanes.catalogue import LANE_NAMES
from mtrun.runtime.cli.profiles import summary
from mtrun.runtime.config.checks import KNOBS
from mtrun.runtime.config.compose import compose, explicit_lanes
from mtrun.runtime.config.overrides import GROUPS
from mtrun.runtime.config.schema import Law

CONF = Path(mtrun.conf.__file__).parent
FILES = sorted(path.relative_to(CONF).with_suffix("").as_posix() for path in CONF.rglob("*.yaml"))
PROFILES = {  # name -> (law, rule, alpha, threshold, lanes decided by the profile)
    "turbo": ("exact", None, None, None, {}),
    "exact-stock": ("exact", None, None, None, dict.fromkeys(LANE_NAMES, False)),
    "cascade-tokenv3": ("cascade", "tokenv3", 0.95, None, {}),
    "typical-0.2": ("typical", None, None, 0.2, {}),
}
# What a choice cannot do without.
COMPANIONS = {
    "acceptance/typical": ["typical.threshold=0.2"],
    "acceptance/typical-pi": ["typical.threshold=0.2"],
    "acceptance/cascade": ["cascade.rule=opt", "cascade.alpha=0.2"],
    "acceptance/synthetic": ["synthetic.rate=0.5"],
    "pack/path": [f"pack.source={CONF}"],
    "server/lan": ["server.no_auth=true"],
}


@pytest.fixture(autouse=True)
def _no_user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("name", [name for name in FILES if name != "config"])
def test_every_file_composes(name: str) -> None:
    group, _, choice = name.partition("/")
    assert group in GROUPS
    assert compose([f"{group}={choice}", *COMPANIONS.get(name, [])]).choices[group] == choice


@pytest.mark.parametrize("name", [name.partition("/")[2] for name in FILES if name.startswith("profile/")])
def test_every_profile_has_its_law_and_lanes(name: str) -> None:
    run = compose([f"profile={name}"])
    law, rule, alpha, threshold, lanes = PROFILES[name]
    found: tuple[Any, ...] = (run.config.acceptance.law, run.config.cascade.rule, run.config.cascade.alpha)
    assert (*found, run.config.typical.threshold) == (law, rule, alpha, threshold)
    assert explicit_lanes(run) == lanes


def test_the_default_profile_is_turbo_on_the_default_pack() -> None:
    choices = compose([]).choices
    assert (choices["profile"], choices["pack"], choices["acceptance"]) == ("turbo", "smollm2", "exact")


def test_the_base_file_sets_no_key_and_loads_profiles_after_every_group() -> None:
    base = OmegaConf.load(CONF / "config.yaml")
    assert list(base) == ["defaults"]  # type: ignore[arg-type]
    order = [item if isinstance(item, str) else next(iter(item)) for item in base.defaults]  # type: ignore[union-attr]
    assert order == ["schema", *GROUPS, "_self_"]


def test_there_is_one_acceptance_file_a_law_and_it_sets_the_law_alone() -> None:
    for law in Law:
        assert OmegaConf.to_container(OmegaConf.load(CONF / "acceptance" / f"{law.name}.yaml")) == {"law": law.name}
    assert (
        {Path(name).name for name in FILES if name.startswith("acceptance/")} == {law.name for law in Law} == set(KNOBS)
    )


def test_no_lane_means_every_lane_of_the_catalogue() -> None:
    assert OmegaConf.to_container(OmegaConf.load(CONF / "lanes" / "none.yaml")) == dict.fromkeys(LANE_NAMES, False)


def test_every_profile_starts_with_its_package_line_and_a_summary() -> None:
    for file in (CONF / "profile").glob("*.yaml"):
        first, second, *_ = file.read_text().splitlines()
        assert first == "# @package _global_"
        assert second == f"# {summary(file)}"


def test_no_state_is_named_like_a_yaml_boolean() -> None:
    words = {Path(name).name for name in FILES} | {law.name for law in Law}
    assert not words & {"on", "off", "yes", "no", "true", "false", "null"}
