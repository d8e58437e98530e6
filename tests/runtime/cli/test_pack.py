"""`mtrun pack`: one sentence and an exit code for each outcome."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mtrun.runtime.cli.pack import pack
from mtrun.runtime.packs.inspect import verify
from support.tiny_pack import write_tiny_pack


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MTRUN_CACHE", str(tmp_path / "cache"))


def run(*words: object) -> Result:
    return CliRunner().invoke(pack, [str(word) for word in words])


def test_list_says_what_to_type_for_a_pack_that_is_not_here() -> None:
    result = run("list")
    assert result.exit_code == 0
    assert "mtrun pack fetch smollm2" in result.stdout


def test_inspect_tells_people_and_scripts_the_same(tmp_path: Path) -> None:
    folder = write_tiny_pack(tmp_path / "pack", draft_vocab=32)
    facts = json.loads(run("inspect", folder, "--json").stdout)
    assert facts["head"]["draft_vocab_size"] == 32
    text = run("inspect", folder).stdout
    assert "draft_vocab_size" in text
    assert facts["trunk_identity"] in text


def test_verify_ends_with_1_on_a_difference(tmp_path: Path) -> None:
    folder = write_tiny_pack(tmp_path / "pack")
    assert run("verify", folder).exit_code == 0
    (folder / "stray.txt").write_text("x")
    result = run("verify", folder)
    assert result.exit_code == 1
    assert "stray.txt" in result.stdout
    assert verify(folder)


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "nothing-of-the-sort"),
        ("verify", "/nowhere"),
        ("fetch", "smollm3"),
        ("fetch", "smollm2", "--from", "/nowhere/x.whl"),
        ("inspect", "smollm2"),
    ],
)
def test_a_fault_is_one_sentence_and_exit_code_2(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith("mtrun: ")
    assert "Traceback" not in result.output
    assert len([line for line in result.stderr.splitlines() if line.startswith("mtrun: ")]) == 1
