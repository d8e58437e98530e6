"""The README's words work: profiles it names, overrides it types, the profile it tells people to write."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mtrun.runtime import compose
from support.sources import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language, in order; "" = fences that name none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


def command_lines() -> list[list[str]]:
    """Overrides of every `mtrun ...` line in the README's plain blocks."""
    lines = [line.split("#")[0] for block in blocks("") for line in block.splitlines() if line.startswith("mtrun ")]
    found = [[word for word in shlex.split(line)[1:] if "=" in word] for line in lines]
    return [words for words in found if words]


def test_the_readme_shows_commands() -> None:
    assert len(command_lines()) >= 4


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_every_command_of_the_readme_composes(words: list[str]) -> None:
    assert compose(words).warnings == ()


def test_the_profile_of_the_readme_composes_and_wins(tmp_path: Path) -> None:
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "mine.yaml").write_text(blocks("yaml")[0])
    config = compose(["profile=mine"], config_dir=tmp_path).config
    assert (config.cascade.rule.value, config.cascade.alpha, config.sampler.temperature) == ("tokenv3", 0.8, 0.7)
    assert config.lanes.kv_q8 is True


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_python_example_is_python_that_names_what_exists() -> None:
    code = blocks("python")[0]
    compile(code, "README.md", "exec")
    from mtrun.runtime import Engine

    for name in set(re.findall(r"engine\.(\w+)", code)):
        assert hasattr(Engine, name)


def test_no_placeholder_is_left() -> None:
    """The only comments bind a figure to its data."""
    assert "<!--" not in re.sub(r"<!-- /?figure\b[^\n]*?-->", "", README)
