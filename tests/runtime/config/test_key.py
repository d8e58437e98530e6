"""The server's key may come from the environment: the one setting that is a secret."""

from __future__ import annotations

import pytest

from mtrun.runtime import compose
from mtrun.runtime.config.why import why_table
from mtrun.runtime.errors import ConfigurationError


def test_the_key_of_the_environment_is_used_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTRUN_API_KEY", "hush-hush")
    composed = compose(["server.host=0.0.0.0"])
    assert composed.config.server.api_key == "hush-hush"
    assert composed.provenance["server.api_key"].text == "from MTRUN_API_KEY"
    assert "hush-hush" not in why_table(composed)


def test_a_key_that_was_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTRUN_API_KEY", "hush-hush")
    assert compose(["server.api_key=typed"]).config.server.api_key == "typed"


def test_waiving_the_key_waives_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTRUN_API_KEY", "hush-hush")
    assert compose(["server.host=0.0.0.0", "server.no_auth=true"]).config.server.api_key is None


def test_a_foreign_bind_without_any_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MTRUN_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match=r"server\.api_key"):
        compose(["server.host=0.0.0.0"])
