"""Tiny packs under native lanes: parts, the evidence that arms them, and a whole installation by the auto-arm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtrun.kernels.native.library import library_path, native_isa
from mtrun.lanes.catalogue import load
from mtrun.lanes.contract import Decision, Evidence, Installed, Proof, Stage
from mtrun.runtime.acceptance.exact import ExactLaw
from mtrun.runtime.arming import autoarm
from mtrun.runtime.arming.install import Installation, Orders
from mtrun.runtime.packs.families import family_of
from mtrun.runtime.packs.reader import describe
from mtrun.runtime.parts import Parts, stock_parts
from mtrun.runtime.verdicts import DecidedBy, VerdictRegistry
from support.tiny_pack import write_tiny_pack
from support.tiny_parts import tiny_evidence

needs_library = pytest.mark.skipif(library_path() is None, reason="the native library is not built")
SERVED = Decision(True, "supported", "Every layer is known.")
NAMES = ("cpu_layer", "cpu_int8", "cpu_head_q4", "draft_chain", "row_kernel", "judge_kernel")


def pack_parts(folder: Path, law: Any = None, **options: Any) -> Parts:
    """Stock parts of a pack that the product's own reader loaded, so that `stored` gives what the files hold."""
    description = describe(write_tiny_pack(folder, **options))
    loaded = family_of(description).load(description)
    return stock_parts(loaded.trunk, loaded.head, loaded.draft_ids, law or ExactLaw())


def native_evidence(parts: Parts, *, threads: int = 1, **seen: Any) -> Evidence:
    """As `tiny_evidence`, on a machine with the native library."""
    known = tiny_evidence(parts, **{"native": SERVED, **seen})
    return replace(known, threads=threads, native_library=library_path(), native_isa=native_isa())


def install_native(parts: Parts, *names: str, **seen: Any) -> dict[str, Installed]:
    """Installs engine lanes by name in the order given, unproved."""
    evidence, lanes = native_evidence(parts, **seen), load(names)
    return {name: lanes[name].install(parts, evidence) for name in names}


def prove(parts: Parts, name: str, installed: Installed, **seen: Any) -> Proof:
    """The proof of an installed lane on these parts."""
    return load([name])[name].prove(installed, parts, native_evidence(parts, **seen))


def armed(parts: Parts, wanted: dict[str, bool] | None = None, **seen: Any) -> tuple[VerdictRegistry, Installation]:
    """The whole catalogue decided, installed and proved as at a start-up, now serving. `wanted`: of explicit lanes."""
    lanes, evidence = load(), native_evidence(parts, **seen)
    asked = {name: (value, DecidedBy("command line", name)) for name, value in (wanted or {}).items()}
    decisions = autoarm.choose(lanes, evidence, asked)
    chosen = {name: (decision.ok, DecidedBy("auto-arm", "")) for name, decision in decisions.items()}
    registry = VerdictRegistry(lanes)
    installation = Installation(Orders(lanes, evidence, {**chosen, **asked}, decisions), registry)
    installation.arm(Stage.PROCESS)
    installation.arm(Stage.ENGINE, parts)
    registry.start_serving()
    return registry, installation
