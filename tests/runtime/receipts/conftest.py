"""A run of `mtrun bench` in small: really decoded, two cells by two seeds, and copies of it that a test may spoil."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from mtrun.runtime import compose
from mtrun.runtime.acceptance.table import build_law
from mtrun.runtime.bench.observe import observe
from mtrun.runtime.bench.plan import Cell, Plan, Slot, schedule
from mtrun.runtime.cli.main import main
from mtrun.runtime.generator import MtpGenerator
from mtrun.runtime.measure.digest import sha256_of
from mtrun.runtime.measure.machine import session
from mtrun.runtime.measure.setting import setting_of
from mtrun.runtime.measure.store import keep_setting, write_json
from mtrun.runtime.preparation import prepare

TOKENS = 24
PROMPTS = ("What is 17 plus 25?",)


@dataclass(frozen=True)
class Folder:
    """A run's folder that may be read and spoiled."""

    path: Path

    def window(self, cell: str, seed: int) -> Path:
        return self.path / "windows" / Slot(cell, seed, 0, 0).file

    def edit(self, file: Path | str, change: Callable[[Any], object]) -> Path:
        """Changes a JSON file in place."""
        path = self.path / file
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))
        return path

    def reset(self, cell: str, change: Callable[[Any], object]) -> None:
        """Changes the setting of a cell's windows and stores it under its new digest."""
        old = json.loads(self.window(cell, 0).read_text())["setting"]
        setting = json.loads((self.path / f"settings/{old}.json").read_text())
        change(setting)
        name = keep_setting(self.path, setting)
        for seed in (0, 1):
            self.edit(self.window(cell, seed), lambda window: window.update(setting=name))


def measured(folder: Path) -> None:
    """Decodes every window of the plan and writes the run. On the thread that calls it."""
    words = {
        "exact": ("pack=nano", "profile=turbo", "draft.depth=2", "lanes.cost_depth=false"),
        "tokenv3-0.75": ("pack=nano", "profile=cascade-tokenv3", "cascade.alpha=0.75", "draft.depth=2"),
    }
    cells = tuple(Cell(name, f"{name}, depth 2", overrides) for name, overrides in words.items())
    plan = Plan("sweep", cells, (0, 1), PROMPTS, 1, 1, TOKENS, nll=False, split=False)
    planned, settings, generators = plan.to_json(), {}, {}
    for name, overrides in words.items():
        run, first = prepare(compose(list(overrides))), next(iter(generators.values()), None)
        generators[name] = MtpGenerator(run) if first is None else first.variant(run)
        if first is None:
            generators[name].load()
        settings[name] = keep_setting(folder, setting_of(generators[name], overrides))
    laws = {"tokenv3-0.5": build_law("cascade", rule="tokenv3", alpha=0.5)}
    for slot in schedule(plan):
        generator = generators[slot.cell]
        ids = generator.prepared.tokenizer.encode_chat([{"role": "user", "content": PROMPTS[slot.prompt]}])
        head = {
            "schema": "mtrun.window/1",
            "kind": "sweep",
            "plan_sha256": sha256_of(planned),
            "setting": settings[slot.cell],
            **{key: value for key, value in asdict(slot).items() if key != "context"},
            "session": 0,
            "warm_up": False,
            "request_seed": slot.request_seed,
            "context": len(ids),
            "tokens": TOKENS,
        }
        window = head | observe(generator, ids, slot.request_seed, TOKENS, laws)
        write_json(folder / "windows" / slot.file, window)
    for generator in reversed(generators.values()):
        generator.close()
    run = {
        "schema": "mtrun.bench.run/1",
        "kind": "sweep",
        "plan": planned,
        "plan_sha256": sha256_of(planned),
        "command": ["mtrun", "bench"],
        "sessions": [session()],
        "cells": {
            cell.name: {
                "label": cell.label,
                "overrides": list(cell.overrides),
                "setting": settings[cell.name],
                "skipped": None,
            }
            for cell in cells
        },
        "missing": [],
    }
    write_json(folder / "run.json", run)


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The run as it was measured: for reading."""
    folder = tmp_path_factory.mktemp("receipts")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(measured, folder / "run").result()
    return Folder(folder / "run")


@pytest.fixture
def run(sound: Folder, tmp_path: Path) -> Folder:
    """A copy to spoil."""
    return Folder(Path(shutil.copytree(sound.path, tmp_path / "run")))


@pytest.fixture
def mtrun(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`mtrun receipt WORDS`: exit code, standard output, standard error. On a thread of its own, since a replay ends
    its thread's MLX streams."""

    def call(*words: object) -> tuple[int, str, str]:
        asked: Sequence[str] = ["receipt", *map(str, words)]
        with ThreadPoolExecutor(1) as pool:
            code = pool.submit(main, asked).result()
        said = capsys.readouterr()
        return code, said.out, said.err

    return call
