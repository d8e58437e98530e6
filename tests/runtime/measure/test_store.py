"""Files of measurements: whole or not there, and every text comes back."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure import store


@given(texts=st.lists(st.text(), min_size=1, max_size=5))
def test_every_text_comes_back_as_it_was(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("lines") / "answers.jsonl"
    kept = [*texts, "a\u2028b\u2029c\x85d\x0be\rf"]
    for text in kept:
        store.append_line(path, {"text": text})
    assert [line["text"] for line in store.read_lines(path)] == kept


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_a_line_that_a_kill_cut_short_is_left_out_and_costs_no_other(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "answers.jsonl"
    for number in range(3):
        store.append_line(path, {"number": number})
    path.write_bytes(path.read_bytes()[:-cut])
    store.append_line(path, {"number": 3})
    found = [line["number"] for line in store.read_lines(path)]
    assert found == ([0, 1, 2, 3] if cut == 1 else [0, 1, 3])


def test_a_setting_is_kept_once_and_known_by_its_content(tmp_path: Path) -> None:
    name = store.keep_setting(tmp_path, {"a": 1})
    assert store.keep_setting(tmp_path, {"a": 1}) == name != store.keep_setting(tmp_path, {"a": 2})
    assert store.read_setting(tmp_path, name) == {"a": 1}
    path = tmp_path / store.SETTINGS / f"{name}.json"
    path.write_text(json.dumps({"a": 3}))
    with pytest.raises(ConfigurationError, match="was changed"):
        store.read_setting(tmp_path, name)


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    store.write_json(path, {"schema": "x", "old": True})
    with pytest.raises(ValueError, match="JSON"):
        store.write_json(path, {"nan": float("nan")})
    assert store.read_json(path, "x") == {"schema": "x", "old": True}
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
    with pytest.raises(ConfigurationError, match="schema y"):
        store.read_json(path, "y")
