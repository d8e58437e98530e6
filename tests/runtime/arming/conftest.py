"""Fake lanes over a fake engine: each replaces the seam `trunk` and writes down what was done to it."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from mtrun.lanes.contract import Decision, Evidence, Exactness, Installed, Latch, PackEvidence, Proof, Stage
from mtrun.runtime.verdicts import DecidedBy


@dataclass
class FakeLane:
    name: str
    log: list
    requires: tuple = ()
    excludes: tuple = ()
    auto: bool = True
    stage: Stage = Stage.ENGINE
    exactness: Exactness = Exactness.EXACT
    summary: str = "a fake"
    support: Decision = field(default_factory=lambda: Decision(True, "supported", "it fits"))
    support_error: Exception | None = None
    install_error: Exception | None = None
    proof: Proof = field(default_factory=lambda: Proof(True, "parity holds", {"max_abs_error": 0.0}))
    proof_error: Exception | None = None
    undo_error: Exception | None = None
    leaks: bool = False  # its undo restores nothing
    latch: Latch = field(default_factory=Latch)

    def supports(self, evidence: Any) -> Decision:
        if self.support_error:
            raise self.support_error
        return self.support

    def install(self, parts: Any, evidence: Any) -> Installed:
        self.log.append(f"install {self.name}")
        before = parts.trunk if parts is not None else None
        if parts is not None:
            parts.trunk = f"{self.name}({before})"
        if self.install_error:
            raise self.install_error

        def undo() -> None:
            self.log.append(f"undo {self.name}")
            if self.undo_error:
                raise self.undo_error
            if parts is not None and not self.leaks:
                parts.trunk = before

        return Installed(undo=undo, latch=self.latch, hot=self.latch.hit)

    def prove(self, installed: Installed, parts: Any, evidence: Any) -> Proof:
        self.log.append(f"prove {self.name}")
        installed.latch.hit()
        if self.proof_error:
            raise self.proof_error
        return self.proof


@pytest.fixture
def log():
    return []


@pytest.fixture
def make_lanes(log):
    def make(**given):
        return {name: FakeLane(name=name, log=log, **options) for name, options in given.items()}

    return make


@pytest.fixture
def parts():
    names = ("trunk", "head", "cache_factory", "draft_scorer", "draft_rows", "verify", "law")
    return SimpleNamespace(**{name: f"stock {name}" for name in names})


@pytest.fixture
def evidence():
    pack = PackEvidence("tiny", "llama", 64, 256, 2, None, Decision(True, "present", "fits"), None, True)
    return Evidence("Linux", "x86_64", "cpu", False, None, False, None, 2, "exact", 3, pack)


@pytest.fixture
def said():
    """An explicit value of a lane, from the command line unless told."""

    def make(value, source="command line", text="given by a test"):
        return value, DecidedBy(source, text)

    return make
