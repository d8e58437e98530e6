from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from omegaconf import OmegaConf

from mtrun.lanes.catalogue import LANE_NAMES
from mtrun.runtime.cli import main as cli
from mtrun.runtime.cli.hydra_flags import configured_command
from mtrun.runtime.config.compose import Composed


@pytest.fixture(autouse=True)
def _no_user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Composed, dict[str, Any]]]:
    """Stand-ins for the commands of other modules, which record what reaches them."""
    seen: list[tuple[str, Composed, dict[str, Any]]] = []

    def stand_in(name: str) -> click.Command:
        @configured_command(name, words=name == "generate", multirun=name != "serve")
        @click.option("--json", "as_json", is_flag=True)
        def run(composed: Composed, **options: Any) -> int:
            """Record."""
            seen.append((name, composed, options))
            return int(composed.config.draft.depth == 7)

        return run

    real = cli.load
    monkeypatch.setattr(cli, "load", lambda name: stand_in(name) if name in cli.CONFIGURED else real(name))
    return seen


Calls = list[tuple[str, Composed, dict[str, Any]]]


@pytest.mark.parametrize("args", [[], ["profile=turbo"], ["--config-dir", "."], ["serve", "profile=turbo"]])
def test_serve_is_the_default_command(args: list[str], calls: Calls) -> None:
    assert cli.main(args) == 0
    assert calls[0][0] == "serve"


@pytest.mark.parametrize("args", [["+x=1"], ["~typical"], ["cascade.alpha=nan"], ["profile=../x"]])
def test_a_wrong_word_is_one_line_and_exit_code_2(args: list[str], calls: Calls, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("mtrun: error: ")
    assert captured.err.count("\n") == 1
    assert calls == []


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["servve"], "did you mean serve?"),
        (["turbo"], "write profile=turbo"),
        (["serve", "--nope"], "no such option"),
        (["serve", "turbo"], "profile=turbo"),
        (["serve", "-m", "profile=turbo"], "drop -m"),
        (["--resolve"], "add --cfg job"),
        (["--cfg", "job", "-p", "cascad"], "did you mean cascade?"),
        (["--cascade-threshold", "2", "profile=cascade-tokenv3"], "acceptance=synthetic"),
        (["--config-dir", "/nonexistent"], "no folder"),
    ],
)
def test_a_wrong_command_line_says_what_to_type(args: list[str], part: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(args) == 2
    assert part in capsys.readouterr().err


def test_own_options_and_words_reach_the_command(calls: Calls) -> None:
    assert cli.main(["generate", "profile=turbo", "what is 1 + 1 = ?", "--json", "draft.depth=2"]) == 0
    _, composed, options = calls[0]
    assert options == {"as_json": True, "words": ("what is 1 + 1 = ?",)}
    assert composed.overrides == ("profile=turbo", "draft.depth=2")


def test_the_exit_code_of_the_command_is_returned(calls: Calls) -> None:
    assert cli.main(["draft.depth=7"]) == 1


def test_multirun_runs_every_combination_in_order_with_the_worst_exit_code(calls: Calls) -> None:
    assert cli.main(["audit", "-m", "profile=turbo,exact-stock", "draft.depth=7,2"]) == 1
    assert [(run.choices["profile"], run.config.draft.depth) for _, run, _ in calls] == [
        ("turbo", 7),
        ("turbo", 2),
        ("exact-stock", 7),
        ("exact-stock", 2),
    ]


def test_multirun_runs_nothing_when_one_combination_is_wrong(calls: Calls, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["audit", "-m", "draft.depth=2,9"]) == 2
    assert calls == []


def test_an_alias_option_sets_the_key_and_warns_once(calls: Calls, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["profile=cascade-tokenv3", "--cascade-threshold", "0.5", "--cascade-rule=opt"]) == 0
    assert (calls[0][1].config.cascade.alpha, calls[0][1].config.cascade.rule) == (0.5, "opt")
    assert capsys.readouterr().err.count("mtrun: warning: ") == 2


def test_looking_runs_nothing(calls: Calls, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["profile=turbo", "--cfg", "job", "--why", "--info"]) == 0
    assert calls == []
    assert "profile/turbo" in capsys.readouterr().out


def test_cfg_job_is_yaml_that_hides_secrets_and_keeps_lanes_as_references(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["--cfg", "job", "--resolve", "profile=cascade-tokenv3", "server.api_key=hunter2"]) == 0
    shown = OmegaConf.create(capsys.readouterr().out)
    raw = OmegaConf.to_container(shown, resolve=False)
    assert raw["acceptance"] == {"law": "cascade"}  # type: ignore[call-overload, index]
    assert raw["server"]["api_key"] == "(hidden)"  # type: ignore[call-overload, index]
    assert raw["lanes"] == {name: f"${{stamp.{name}}}" for name in LANE_NAMES}  # type: ignore[call-overload, index]


@pytest.mark.parametrize(("kind", "top"), [("hydra", ["hydra"]), ("all", ["acceptance", "hydra"])])
def test_cfg_shows_the_hydra_node_without_secrets(kind: str, top: list[str], capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["--cfg", kind, "server.api_key=hunter2"]) == 0
    text = capsys.readouterr().out
    assert "hunter2" not in text
    assert set(top) <= set(OmegaConf.create(text))  # type: ignore[arg-type]


def test_cfg_package_prints_one_part(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["--cfg", "job", "-p", "cascade", "profile=cascade-tokenv3"]) == 0
    assert capsys.readouterr().out == "# @package cascade\nrule: tokenv3\nalpha: 0.95\n"
    assert cli.main(["--cfg", "job", "-p", "lanes.frspec"]) == 0
    assert capsys.readouterr().out == "${stamp.frspec}\n"


def test_profiles_lists_shipped_and_own_with_summaries(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "mine.yaml").write_text("# @package _global_\n# My own.\ndefaults: [turbo]\n")
    assert cli.main(["profiles", "--json", "--config-dir", str(tmp_path)]) == 0
    found = {item["name"]: item for item in json.loads(capsys.readouterr().out)}
    assert {"turbo", "exact-stock", "cascade-tokenv3", "typical-0.2", "mine"} == set(found)
    assert found["turbo"]["source"] == "shipped"
    assert found["mine"] == {"name": "mine", "summary": "My own.", "source": str(tmp_path / "profile" / "mine.yaml")}
    assert cli.main(["profiles", "--config-dir", str(tmp_path)]) == 0
    assert f"My own.  [{tmp_path}" in capsys.readouterr().out


def test_an_absent_command_module_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "forge", "mtrun.runtime.cli.absent:forge")
    assert cli.main(["forge", "train", "--steps", "3"]) == 2
    assert "no command forge" in capsys.readouterr().err


def test_an_interrupt_is_quiet_and_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def interrupted(name: str) -> click.Command:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load", interrupted)
    assert cli.main(["profiles"]) == 130
    assert capsys.readouterr().err.strip() == ""


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["serve", "--help"], ["profiles", "-h"]])
def test_help_and_version_exit_0(args: list[str], capsys: pytest.CaptureFixture) -> None:
    assert cli.main(args) == 0
    assert "mtrun" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["completion", shell]) == 0
    assert "_MTRUN_COMPLETE" in capsys.readouterr().out


def _completions(line: str, tmp_path: Path) -> list[str]:
    words = line.split(" ")
    env = {**os.environ, "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_MTRUN_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-m", "mtrun.runtime.cli.main"], env=env, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return [item.partition(",")[2] for item in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("mtrun pro", ["profiles"]),
        ("mtrun profile=tu", ["profile=turbo"]),
        ("mtrun serve prof", ["profile="]),
        ("mtrun serve profile=", ["profile=turbo", "profile=typical-0.2"]),
        ("mtrun profile=cascade-tokenv3 cascade.", ["cascade.alpha=", "cascade.rule="]),
        ("mtrun serve --wh", ["--why"]),
    ],
)
def test_words_complete_from_groups_and_keys(line: str, some: list[str], tmp_path: Path) -> None:
    assert set(some) <= set(_completions(line, tmp_path))


def test_bash_completes_a_word_that_holds_an_equals_sign() -> None:
    script = """
    mtrun() { "$PY" -m mtrun.runtime.cli.main "$@"; }
    cat > "$DIR/mtrun" <<< '#!/bin/sh
exec "$PY" -m mtrun.runtime.cli.main "$@"'
    chmod +x "$DIR/mtrun"; PATH="$DIR:$PATH"; unset -f mtrun
    eval "$(mtrun completion bash)"
    COMP_LINE="mtrun serve profile=tu"; COMP_POINT=${#COMP_LINE}
    COMP_WORDBREAKS=$' \\t\\n=:'
    _mtrun_completion mtrun 2>/dev/null
    echo "${COMPREPLY[@]}"
    """
    import shutil
    import tempfile

    if shutil.which("bash") is None:
        pytest.skip("no bash on this machine")
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PY": sys.executable, "DIR": folder}
        done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "turbo", done.stderr


LIGHT = """
import resource, sys
from mtrun.runtime.cli.main import main
code = main(["--cfg", "job", "profile=turbo"])
heavy = sorted({"mlx", "mlx_lm", "numpy", "fastapi", "rich", "transformers", "huggingface_hub"} & set(sys.modules))
used = resource.getrusage(resource.RUSAGE_SELF)
print(code, heavy, used.ru_utime + used.ru_stime, file=sys.stderr)
"""


def test_showing_a_configuration_is_cheap_and_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=False)
    code, heavy, seconds = done.stderr.strip().splitlines()[-1].split(" ", 2)
    assert (code, heavy) == ("0", "[]")
    assert float(seconds) < 1.2  # the budget is 0.6 s; twice that leaves room for a busy machine
