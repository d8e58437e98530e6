"""The one place that reads the environment."""

from pathlib import Path

import pytest

from mtrun.runtime import environment


def test_the_cache_folder_is_the_users_unless_one_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MTRUN_CACHE", str(tmp_path))
    assert environment.cache_folder() == tmp_path
    monkeypatch.setenv("MTRUN_CACHE", " ")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(environment.platform, "system", lambda: "Linux")
    assert environment.cache_folder() == tmp_path / ".cache" / "mtrun"
    monkeypatch.setattr(environment.platform, "system", lambda: "Darwin")
    assert environment.cache_folder() == tmp_path / "Library" / "Caches" / "mtrun"


def test_a_relative_cache_folder_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MTRUN_CACHE", "here")
    assert environment.cache_folder() == tmp_path / "here"


def test_a_blank_key_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MTRUN_API_KEY", raising=False)
    assert environment.api_key() is None
    monkeypatch.setenv("MTRUN_API_KEY", "  ")
    assert environment.api_key() is None
    monkeypatch.setenv("MTRUN_API_KEY", "secret")
    assert environment.api_key() == "secret"


def test_a_child_sees_the_changes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/old")
    assert environment.child_environment(TMPDIR="/new")["TMPDIR"] == "/new"
    assert environment.child_environment()["TMPDIR"] == "/old"
