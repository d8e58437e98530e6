"""A figure in a text is held to the data behind it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mtrun.runtime.cli.main import main
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.report.figures_in_text import check_text, value_at, write_text

DATA = {"packs": {"nano": {"opt-0.25": {"tok_s": 228.6, "list": [1, 0.5], "a/b~c": "x", "none": None}}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/figures.json").write_text(json.dumps(DATA))
    return tmp_path


def text(folder: Path, *figures: tuple[str, str], name: str = "page.md") -> Path:
    """A text with one figure a line: (pointer and format, text)."""
    lines = [f"It is <!-- figure data/figures.json#{key} -->{said}<!-- /figure --> fast." for key, said in figures]
    path = folder / name
    path.write_text("\n".join(["# Page", *lines]) + "\n")
    return path


CELL = "/packs/nano/opt-0.25"


def test_right_figures_pass(folder: Path) -> None:
    path = text(folder, (f"{CELL}/tok_s .0f", "229"), (f"{CELL}/list/1 .0%", "50%"), (f"{CELL}/a~1b~0c", "x"))
    assert check_text([path]) == (3, [])


def test_an_edited_figure_is_named_with_its_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = text(folder, (f"{CELL}/tok_s .0f", "229"), (f"{CELL}/tok_s .1f", "230.6"))
    assert main(["report", "--check-text", str(path)]) == 1
    told = capsys.readouterr()
    assert told.err == f"{path}:3: data/figures.json#{CELL}/tok_s is 228.6, and the text says 230.6\n"
    assert told.out == "2 figures in 1 texts, 1 wrong\n"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("/packs/nano/opt-0/tok_s", "there is no 'opt-0'"),
        (f"{CELL}/list/7", "there is no '7'"),
        ("packs", "there is no 'packs'"),
        (f"{CELL}/list", "that is no figure: name a number or a text in it"),
        (f"{CELL}/none", "that is no figure: name a number or a text in it"),
        (f"{CELL}/tok_s .0q", "it cannot be read or written so"),
    ],
)
def test_a_binding_that_leads_nowhere_is_wrong(folder: Path, key: str, said: str) -> None:
    path = text(folder, (key, "1"))
    (count, wrong) = check_text([path])
    assert (count, len(wrong)) == (1, 1)
    assert wrong[0].startswith(f"{path}:2: data/figures.json#{key.split(' ')[0]}: {said}")
    with pytest.raises(ConfigurationError, match=r"page\.md:2"):
        write_text([path])


def test_a_file_that_is_not_there_and_a_comment_without_its_half_are_wrong(folder: Path) -> None:
    path = folder / "page.md"
    path.write_text(
        "<!-- figure gone.json#/a -->1<!-- /figure -->\n<!-- figure data/figures.json#/a -->2\n<!-- /figure -->\n"
    )
    count, wrong = check_text([path])
    assert count == 1
    assert [line.split(": ", 1)[0] for line in wrong] == [f"{path}:{number}" for number in (1, 2, 3)]
    assert "cannot be read" in wrong[0]


def test_writing_refreshes_and_leaves_the_rest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = text(folder, (f"{CELL}/tok_s .0f", "1"), (f"{CELL}/tok_s .1f", "228.6"), (f"{CELL}/list/1", "2"))
    before = path.read_text()
    assert main(["report", "--write-text", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}:2: 1 became 229\n{path}:4: 2 became 0.5\n"
    assert path.read_text() == before.replace("-->1<", "-->229<").replace("-->2<", "-->0.5<")
    assert check_text([path]) == (3, [])


def test_code_is_left_alone(folder: Path) -> None:
    path = folder / "page.md"
    mark = "<!-- figure nowhere.json#/a -->1<!-- /figure -->"
    path.write_text(f"```\n{mark}\n```\nand `{mark}`\n")
    assert check_text([path]) == (0, [])


def test_a_report_writes_figures_for_texts(written: Path, tmp_path: Path) -> None:
    found = json.loads((written / "report/figures.json").read_text())
    speed = value_at(found, "/packs/smollm2/tokenv3-0.95/decode_tok_s")
    assert speed["low"] < speed["median"] < speed["high"]
    assert speed["text"] in (written / "report/report.md").read_text()
    assert value_at(found, "/packs/smollm2/exact/by_context/1024/decode_tok_s/n") == 4
    assert 0 < value_at(found, "/packs/smollm2/exact/tasks/nano/strict/value") < 1
