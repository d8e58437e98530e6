"""A window measured again: the same words, pack, prompt, seed and length, and whether the same tokens come out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure.digest import sha256_of
from mtrun.runtime.measure.machine import load, session
from mtrun.runtime.measure.setting import pack_identity, setting_of
from mtrun.runtime.measure.store import RUN, keep_setting, write_json
from mtrun.runtime.receipts.diff import pack_differences, section_lines, setting_differences
from mtrun.runtime.receipts.opened import WINDOWS, Receipt
from mtrun.runtime.receipts.text import first_difference

if TYPE_CHECKING:
    from mtrun.runtime.preparation import Preparation

WARM_UP = 16  # tokens of a reply that nobody sees, so that the window is not charged for what runs once


@dataclass(frozen=True)
class Replayed:
    """The window as it came out here, the setting in force, and what may make its figures other ones."""

    window: dict[str, Any]
    setting: dict[str, Any]
    warnings: list[str]
    first_difference: int | None  # index of the first token that differs, None = the same output


def replay(
    receipt: Receipt, config_dir: Path | None = None, say: Callable[[str], None] = lambda text: None
) -> Replayed:
    """Composes, loads and decodes on the calling thread, which must be the one that goes on with MLX, if any does.

    Raises ConfigurationError where the words cannot be composed here or the pack is another one than was measured.
    """
    from mtrun.runtime import compose
    from mtrun.runtime.generator import MtpGenerator
    from mtrun.runtime.preparation import prepare

    run = prepare(compose(_words(receipt), config_dir=config_dir))
    _check_pack(receipt, run)
    say(f"loading {run.pack.name}")
    generator = MtpGenerator(run)
    generator.load()
    try:
        from mtrun.runtime.bench.observe import observe

        setting = setting_of(generator, receipt.setting["overrides"])
        window = receipt.window
        asked = (window["prompt_ids"], window["request_seed"])
        say(f"decoding {window['tokens']} tokens")
        observe(generator, *asked, min(window["tokens"], WARM_UP))
        found = observe(generator, *asked, window["tokens"])
    finally:
        generator.close()
    return Replayed(found, setting, _warnings(receipt, setting), first_difference(window["ids"], found["ids"]))


def store(receipt: Receipt, replayed: Replayed, folder: Path, command: list[str]) -> Path:
    """Keeps a replay as a run folder of the same plan that lacks every other window; returns the window's file.

    Raises ConfigurationError where the folder holds something already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is not empty: give a new folder")
    name = keep_setting(folder, replayed.setting)
    head = {key: value for key, value in receipt.window.items() if key not in replayed.window}
    window = {**head, **replayed.window, "setting": name, "session": 0, "replay_of": sha256_of(receipt.window)}
    path = folder / WINDOWS / receipt.path.name
    write_json(path, window)
    if receipt.run is not None:
        write_json(folder / RUN, _run(receipt, name, command))
    return path


def _run(receipt: Receipt, setting: str, command: list[str]) -> dict[str, Any]:
    """run.json of the same plan: everything but the replayed window is listed as missing."""
    from mtrun.runtime.bench.plan import Plan, schedule

    assert receipt.run is not None
    here = tuple(receipt.window.get(key) for key in ("cell", "seed", "prompt", "round", "context_asked"))
    cells = {
        name: {**cell, "setting": setting if name == receipt.window["cell"] else None}
        for name, cell in receipt.run["cells"].items()
    }
    others = [
        {"cell": one.cell, "seed": one.seed, "prompt": one.prompt, "round": one.round, "context_asked": one.context}
        for one in schedule(Plan.of_json(receipt.run["plan"]))
        if (one.cell, one.seed, one.prompt, one.round, one.context) != here
    ]
    missing = [{**one, "reason": "not replayed"} for one in others]
    done = {**session(), "ended": time.time(), "load_after": load()}
    return {**receipt.run, "command": command, "sessions": [done], "cells": cells, "missing": missing}


def _words(receipt: Receipt) -> list[str]:
    """The words as recorded. A word that a receipt does not tell, such as a key of the server, decodes nothing."""
    from mtrun.runtime.config.why import HIDDEN

    return [word for word in receipt.setting["overrides"] if HIDDEN not in word]


def _check_pack(receipt: Receipt, run: Preparation) -> None:
    other = pack_differences(receipt.setting["pack"], pack_identity(run.pack))
    if other:
        first = f"{other[0].key} {other[0].left[:16]}, here {other[0].right[:16]}"
        raise ConfigurationError(
            f"{receipt.path} was measured with another {receipt.setting['pack']['name']} ({first}): fetch that pack, "
            "or measure again"
        )


def _warnings(receipt: Receipt, setting: Mapping[str, Any]) -> list[str]:
    """What differs here, and what the recorded figures hold that these do not."""
    lines = []
    differences = setting_differences(receipt.setting, setting)
    if differences:
        sections = ", ".join(dict.fromkeys(one.section for one in differences))
        lines += [f"this is not the setting that was recorded ({sections}):", *section_lines(differences)]
    if setting["pack"]["sha256"] is None:
        lines.append("the pack has no manifest, so nothing says that its weights are the same")
    if receipt.window["shadow"]:
        lines.append("shadow laws watched the recorded window, and its times hold their cost")
    if receipt.window["refused"]:
        lines.append(f"the recorded window was refused: {receipt.window['refused']}")
    return lines
