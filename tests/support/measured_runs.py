"""Folders of runs as `mtrun bench` and `mtrun eval` write them, made of numbers alone: no model runs.

Every figure follows from (cell, seed, prompt, round, context) by a fixed rule, so two writings are equal.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mtrun.runtime.acceptance.counts import Counts
from mtrun.runtime.acceptance.rates import rates
from mtrun.runtime.measure.digest import ids_digest, sha256_of
from mtrun.runtime.measure.store import append_line, keep_setting, write_json

DEPTH, TOKENS = 3, 64
# cell -> (law, rule, parameters, chance that a draft is kept, decode tok/s before noise)
LAWS: Mapping[str, tuple[str, str | None, dict[str, float], float, float]] = {
    "plain": ("exact", None, {}, 0.0, 229.0),
    "exact": ("exact", None, {}, 0.55, 205.0),
    "typical-0.2": ("typical", None, {"threshold": 0.2, "eps": 1.0}, 0.62, 218.0),
    "typical-pi-0.2": ("typical-pi", None, {"threshold": 0.2, "eps": 1.0}, 0.64, 222.0),
    "tokenv3-0.75": ("cascade", "tokenv3", {"alpha": 0.75}, 0.6, 214.0),
    "tokenv3-0.95": ("cascade", "tokenv3", {"alpha": 0.95}, 0.68, 231.0),
    "opt-0": ("cascade", "opt", {"alpha": 0.0}, 0.66, 228.0),
    "opt-0.25": ("cascade", "opt", {"alpha": 0.25}, 0.75, 249.0),
    "opt-0.5": ("cascade", "opt", {"alpha": 0.5}, 0.81, 263.0),
    "opt-0.75": ("cascade", "opt", {"alpha": 0.75}, 0.85, 274.0),
}
ALL = tuple(LAWS)
_MACHINE = {
    "system": "Linux",
    "release": "6.1",
    "machine": "x86_64",
    "processor": "a processor",
    "cores": 2,
    "memory_bytes": 24 * 2**30,
    "cpu_mhz": 2600,
}


def write_bench(
    folder: Path,
    kind: str = "sweep",
    cells: Sequence[str] = ALL,
    pack: str = "smollm2",
    seeds: Sequence[int] = (0, 1, 2, 3),
    contexts: Sequence[int] = (),
    rounds: int = 1,
    shadow: bool = False,
    skipped: Mapping[str, str] | None = None,
    **setting: Any,
) -> Path:
    """A complete bench run of two prompts a seed; `setting` replaces fields of every cell's setting."""
    plan = {
        "kind": kind,
        "cells": [{"name": cell, "label": cell, "overrides": overrides(cell)} for cell in cells],
        "seeds": list(seeds),
        "prompts": [f"prompt {number}" for number in range(5)],
        "per_seed": 2,
        "rounds": rounds,
        "tokens": TOKENS,
        "contexts": list(contexts),
        "a": cells[0] if kind == "abab" else None,
        "b": cells[1] if kind == "abab" else None,
        "margin": 0.02 if kind == "abab" else None,
    }
    states = _cells(folder, cells, pack, skipped or {}, setting)
    for cell in cells:
        if cell not in (skipped or {}):
            for place in _places(plan):
                window = window_of(kind, cell, sha256_of(plan), states[cell]["setting"], *place, shadow=shadow)
                write_json(folder / "windows" / window_name(cell, *place), window)
            warm = window_of(kind, cell, sha256_of(plan), states[cell]["setting"], seeds[0], 0, -1, 0)
            write_json(folder / "windows" / window_name(cell, seeds[0], 0, -1, 0), warm | {"warm_up": True})
    _run(folder, "mtrun.bench.run/1", kind, plan, states)
    return folder


def write_tasks(folder: Path, cell: str, pack: str = "nano", tasks: int = 40, seeds: Sequence[int] = (0, 1)) -> Path:
    """A run of checked tasks: a lossier law is wrong a little more often, every ninth answer is cut off."""
    states = _cells(folder, [cell], pack, {}, {})
    plan = {"set": "nano", "set_sha256": "5" * 64, "tasks": tasks, "seeds": list(seeds), "max_tokens": 200}
    for seed in seeds:
        for number in range(tasks):
            rng = random.Random(f"{cell} {seed} {number}")
            truncated = number % 9 == 8
            append_line(
                folder / "answers.jsonl",
                {
                    "task": f"task-{number}",
                    "family": ("addition", "lists")[number % 2],
                    "seed": seed,
                    "prompt_digest": "0" * 64,
                    "text": "The answer is 4.",
                    "ids": [1, 2],
                    "digest": ids_digest([1, 2]),
                    "reason": "length" if truncated else "stop",
                    "output_tokens": 50 + number,
                    "truncated": truncated,
                    "counts": asdict(_counts(rng, LAWS[cell][3], 20)),
                    "law": {},
                    "prefill_seconds": 0.1,
                    "decode_seconds": 1.0,
                    "wall_seconds": 1.1,
                    "ok": not truncated and rng.random() < 0.95 - LAWS[cell][3] / 4,
                    "why": "as checked",
                },
            )
    _run(folder, "mtrun.eval.run/1", "tasks", plan, states, set="nano", set_sha256="5" * 64)
    return folder


def write_text(folder: Path, cell: str, pack: str = "smollm2", seeds: Sequence[int] = (0, 1, 2)) -> Path:
    """A run of scored text."""
    states = _cells(folder, [cell], pack, {}, {})
    for seed in seeds:
        for prompt in range(4):
            rng = random.Random(f"text {cell} {seed} {prompt}")
            nll = 1.2 + LAWS[cell][3] / 5 + rng.gauss(0, 0.05)
            line = {"prompt": prompt, "seed": seed, "ids": [1, 2], "digest": ids_digest([1, 2]), "output_tokens": 64}
            line |= {"counts": asdict(_counts(rng, LAWS[cell][3], 20)), "law": {}, "decode_seconds": 1.0}
            line |= {"nll": nll, "nll_sum": nll * 64, "off_support_mass": 0.01, "mode_mass": 0.6, "tv": 0.2}
            append_line(folder / "answers.jsonl", line | {"distinct1": 0.5, "distinct2": 0.8, "distinct3": 0.9})
    plan = {"seeds": list(seeds), "prompts": 4, "max_tokens": 64}
    _run(folder, "mtrun.eval.run/1", "text", plan, states, set="held-out", set_sha256="6" * 64)
    return folder


def window_name(cell: str, seed: int, prompt: int, turn: int, context: int) -> str:
    """The window's file."""
    return f"{cell}.s{seed}.p{prompt}.r{turn}{f'.c{context}' if context else ''}.json"


def window_of(
    kind: str,
    cell: str,
    plan_sha256: str,
    setting: str | None,
    seed: int,
    prompt: int,
    turn: int,
    context: int,
    shadow: bool = False,
) -> dict[str, Any]:
    """One counted window with every field of mtrun.window/1."""
    law, rule, parameters, keep, speed = LAWS[cell]
    rng = random.Random(f"{cell} {seed} {prompt} {turn} {context}")
    shared = random.Random(f"{seed} {prompt}").gauss(0, 0.03)  # what all cells of a prompt have in common
    counts = _counts(rng, keep, TOKENS // 3) if keep else Counts(generated=TOKENS, verify_calls=TOKENS - 1)
    rate = speed * (1 + shared + rng.gauss(0, 0.01)) / (1 + context / 16384)
    seconds, prefilled = (TOKENS - 1) / rate, context or 30
    ids = [rng.randrange(1000) for _ in range(TOKENS)]
    split = {"draft": 0.9, "verify": 5.1, "rows": 0.4, "judge": 0.2, "commit": 0.3, "rest": 0.25}
    return {
        "schema": "mtrun.window/1",
        "kind": kind,
        "plan_sha256": plan_sha256,
        "cell": cell,
        "setting": setting,
        "seed": seed,
        "prompt": prompt,
        "round": turn,
        "session": 0,
        "warm_up": False,
        "request_seed": seed * 1000 + prompt,
        "context": prefilled - 3 if context else prefilled,
        "context_asked": context or None,
        "tokens": TOKENS,
        "prompt_digest": ids_digest([5, 6]),
        "prompt_ids": [5, 6],
        "ids": ids,
        "digest": ids_digest(ids),
        "reason": "length",
        "law": {"law": law, "rule": rule, "parameters": parameters, "distribution_exact": law == "exact"},
        "counts": asdict(counts),
        "notes": [],
        "prefill_seconds": prefilled / 600,
        "ttft_seconds": prefilled / 600 + 0.005,
        "decode_seconds": seconds,
        "decode_cpu_seconds": seconds * 0.99,
        "wall_seconds": seconds + prefilled / 600,
        "cpu_seconds": seconds + prefilled / 600,
        "prefill_tok_s": 600.0 * (1 + shared) / (1 + context / 32768),
        "decode_tok_s": rate,
        "cycle_ms": {"p50": 8.0, "p95": 9.0, "p99": 10.0},
        "token_ms": {"p50": 4.0, "p95": 5.0, "p99": 6.0},
        "split_ms": split if keep else {**split, "draft": 0.0, "judge": 0.05},
        "rates": rates(counts),
        "nll": 1.3 + keep / 4 + shared + rng.gauss(0, 0.02),
        "memory": {
            "rss_bytes": (310 + context // 20) * 2**20,
            "rss_peak_bytes": (330 + context // 16) * 2**20,
            "mlx_peak_bytes": None,
        },
        "verdicts": {"cpu_blas": ["engaged", 10]},
        "load": [0.5, 0.5, 0.5],
        "cpu_mhz": 2600,
        "temperature": None,
        "shadow": _shadow(rng) if shadow and cell == "exact" else None,
        "refused": None,
        "error": None,
    }


def _places(plan: Mapping[str, Any]) -> list[tuple[int, int, int, int]]:
    """(seed, prompt, round, context) of every window."""
    return [
        (seed, (position * plan["per_seed"] + step) % len(plan["prompts"]), turn, context)
        for position, seed in enumerate(plan["seeds"])
        for step in range(plan["per_seed"])
        for turn in range(plan["rounds"])
        for context in plan["contexts"] or [0]
    ]


def _counts(rng: random.Random, keep: float, cycles: int) -> Counts:
    counts = Counts()
    for _ in range(cycles if keep else 0):
        kept = 0
        while kept < DEPTH and rng.random() < keep * 0.95**kept:
            kept += 1
        deferred = [False] * kept + [True] * (DEPTH - kept)
        counts.record(DEPTH, kept, deferred, [0.3] * DEPTH)
    counts.generated = counts.verify_calls = counts.cycles
    return counts


def _shadow(rng: random.Random) -> dict[str, Any]:
    found = {}
    for cell, (law, rule, parameters, keep, _) in LAWS.items():
        if cell != "plain":
            share = 0.97 * keep + rng.gauss(0, 0.01)
            depths = [{"positions": 21, "expected_keep": 21 * share}, {"positions": 12, "expected_keep": 12 * share}]
            found[cell] = {
                "law": law,
                "rule": rule,
                "parameters": parameters,
                "positions": 33,
                "kept": round(33 * share),
                "deferred": 10,
                "expected_keep": 33 * share,
                "keep_rate_predicted": share,
                "emitted_divergence": 1.0,
                "mean_emitted_divergence": 1 / 33,
                "per_depth": depths,
                "validity": "valid position by position",
            }
    return found


def _cells(
    folder: Path, cells: Sequence[str], pack: str, skipped: Mapping[str, str], extra: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    states = {}
    for cell in cells:
        setting = None if cell in skipped else keep_setting(folder, setting_of(cell, pack) | dict(extra))
        about = {"label": f"label of {cell}", "overrides": overrides(cell), "setting": setting}
        states[cell] = {**about, "skipped": skipped.get(cell)}
    return states


def setting_of(cell: str, pack: str) -> dict[str, Any]:
    """The setting of a cell, as far as reports read it."""
    law, rule, parameters, keep, _ = LAWS[cell]
    return {
        "schema": "mtrun.setting/1",
        "overrides": overrides(cell),
        "config": {"draft": {"depth": DEPTH if keep else 0}},
        "config_sha256": sha256_of(cell),
        "sampler": {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "min_p": 0.0},
        "law": {"law": law, "rule": rule, "parameters": parameters, "distribution_exact": law == "exact"},
        "provenance": {},
        "warnings": [],
        "pack": {"name": pack, "family": "llama", "trunk_identity": "7" * 64, "sha256": {"mtp.safetensors": "8" * 64}},
        "audit": {"lanes": [{"lane": "block_verify", "state": "armed"}]},
        "code": {"commit": "9" * 40, "changes_sha256": None, "source_sha256": "a" * 64},
        "law_code_sha256": sha256_of(law),
        "versions": {"python": "3.11"},
        "machine": _MACHINE,
    }


def change(path: Path, **fields: object) -> None:
    """Replaces fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def overrides(cell: str) -> list[str]:
    """The words of a cell."""
    law, rule, parameters, _, _ = LAWS[cell]
    knobs = [f"cascade.rule={rule}", f"cascade.alpha={parameters['alpha']:g}"] if rule else []
    return [f"acceptance={law}", *knobs]


def _run(folder: Path, schema: str, kind: str, plan: Mapping[str, Any], states: Mapping[str, Any], **more: Any) -> None:
    session = {"started": 1.8e9, "ended": 1.8e9 + 60, "machine": _MACHINE, "load_before": [0.6, 0.5, 0.4]}
    session |= {"versions": {"python": "3.11.7", "mtrun": "0.1.0", "scipy": None}, "load_after": [1.0, 0.8, 0.5]}
    run = {"schema": schema, "kind": kind, "plan": plan, "plan_sha256": sha256_of(plan), "command": ["bench", kind]}
    write_json(folder / "run.json", {**run, "sessions": [session], "cells": states, "missing": [], **more})
