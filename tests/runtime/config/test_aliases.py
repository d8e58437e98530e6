from __future__ import annotations

import pytest

from mtrun.runtime.config.aliases import ALIASES, RENAMED
from mtrun.runtime.config.compose import compose
from mtrun.runtime.config.leaves import leaves
from mtrun.runtime.config.overrides import GROUPS

PROFILE = {"cascade.alpha": "cascade-tokenv3", "cascade.rule": "cascade-tokenv3", "typical.threshold": "typical-0.2"}
VALUE = {"cascade.alpha": ("0.25", "0.5"), "cascade.rule": ("opt", "tokenv1"), "typical.threshold": ("0.25", "0.5")}


def test_the_table_points_at_keys_that_exist() -> None:
    assert set(ALIASES.values()) <= set(leaves())
    assert set(RENAMED.values()) <= {*leaves(), *GROUPS}
    assert not set(RENAMED) & {*leaves(), *GROUPS, *ALIASES}


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_sets_its_key_warns_once_and_beats_the_profile(alias: str) -> None:
    key = ALIASES[alias]
    value = VALUE[key][0]
    run = compose([f"profile={PROFILE[key]}", f"{alias}={value}", f"{alias}={value}"])
    section, _, name = key.partition(".")
    assert str(getattr(run.config[section][name], "name", run.config[section][name])) == value
    assert len(run.warnings) == 1
    assert f"write {key}={value}" in run.warnings[0]
    assert run.provenance[key].detail == f"{alias}={value}"


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_loses_to_its_key_in_either_order(alias: str) -> None:
    key = ALIASES[alias]
    low, high = VALUE[key]
    section, _, name = key.partition(".")
    for words in ([f"{alias}={low}", f"{key}={high}"], [f"{key}={high}", f"{alias}={low}"]):
        run = compose([f"profile={PROFILE[key]}", *words])
        assert str(getattr(run.config[section][name], "name", run.config[section][name])) == high
        assert len(run.warnings) == 1
        assert "also given and wins" in run.warnings[0]
