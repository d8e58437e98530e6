"""Installs and proves lanes in order, gives each its verdict, and takes everything out again when start-up fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mtrun.lanes import order
from mtrun.lanes.contract import Decision, EngineParts, Evidence, Installed, LaneSpec, Proof, Stage
from mtrun.runtime.arming.autoarm import AUTO_ARM, Wanted, clause, describe, supports
from mtrun.runtime.errors import LaneError, StampError
from mtrun.runtime.verdicts import DecidedBy, State, VerdictRegistry

SEAMS = tuple(EngineParts.__annotations__)


@dataclass(frozen=True)
class Orders:
    """What is to be installed: each lane's value and provenance, and the auto-arm's decisions with their reasons."""

    lanes: Mapping[str, LaneSpec]  # in catalogue order
    evidence: Evidence
    wanted: Mapping[str, Wanted]  # lane -> (value, provenance), read once from the stamped configuration
    decisions: Mapping[str, Decision]  # of autoarm.choose


@dataclass(frozen=True)
class Entry:
    """One lane in place, and what the seams held before it came."""

    name: str
    installed: Installed
    parts: EngineParts | None
    before: Mapping[str, Any]


@dataclass
class Installation:
    """The stack of lanes in place for one engine. Lanes leave it in the reverse of the order in which they came."""

    orders: Orders
    registry: VerdictRegistry
    stack: list[Entry] = field(default_factory=list)

    def arm(self, stage: Stage, parts: EngineParts | None = None) -> None:
        """Give every lane of the stage its verdict: process stage first, before mlx is imported, then the engine stage.

        A lane the auto-arm chose and that fails is taken out and declined. Raises LaneError when a lane somebody asked
        for fails, StampError when a lane has no value; whatever the error, all lanes of both stages are out by then.
        """
        try:
            self._check_wanted()
            names = [name for name in order.topological(self.orders.lanes) if self._lane(name).stage is stage]
            if stage is Stage.PROCESS:
                self._check_asked()
                self._arm_together(names)
            else:
                self._arm_in_turn(names, parts)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Take every lane out, last in first out. Raises LaneError after trying all, naming those that failed."""
        failures: list[str] = []
        while self.stack:
            entry = self.stack.pop()
            try:
                entry.installed.undo()
            except Exception as error:
                failures.append(f"{entry.name} ({describe(error)})")
        if failures:
            raise LaneError(f"lanes could not be undone: {', '.join(failures)}; restart the process before serving")

    def _arm_together(self, names: list[str]) -> None:
        """All in, then all proved: the first proof imports mlx, after which no lane of the process stage may come."""
        for name in [name for name in names if self._enter(name, None)]:
            self._prove(name, None)

    def _arm_in_turn(self, names: list[str], parts: EngineParts | None) -> None:
        """Each proved on top of those before it, so that a proof sees the parts it will serve with."""
        for name in names:
            if self._enter(name, parts):
                self._prove(name, parts)

    def _enter(self, name: str, parts: EngineParts | None) -> bool:
        """Put a wanted lane in; False when it got its verdict instead."""
        value, by = self.orders.wanted[name]
        if not value:
            decision = self.orders.decisions[name]
            code = "operator" if self._is_explicit(name) else decision.code
            self.registry.decline(name, code, decision.reason, by)
            return False
        answer = supports(self._lane(name), self.orders.evidence)
        if not answer.ok:
            return self._refuse(name, answer.code, answer.reason)
        if blocker := self._declined_requirement(name):
            return self._refuse(name, "requires", blocker)
        before = _seams(parts)
        try:
            installed = self._lane(name).install(parts, self.orders.evidence)
        except Exception as error:
            _restore(parts, before)
            return self._refuse(name, "install_failed", f"its installation raised {describe(error)}")
        self.stack.append(Entry(name, installed, parts, before))
        return True

    def _prove(self, name: str, parts: EngineParts | None) -> None:
        if blocker := self._declined_requirement(name):
            self._withdraw(name)
            self._refuse(name, "requires", blocker)
            return
        installed = next(entry.installed for entry in self.stack if entry.name == name)
        try:
            proof = self._lane(name).prove(installed, parts, self.orders.evidence)
        except Exception as error:
            proof = Proof(False, f"its proof raised {describe(error)}")
        if proof.ok:
            self.registry.arm(name, installed, proof, self.orders.wanted[name][1])
            return
        self._withdraw(name)
        self._refuse(name, "proof_failed", proof.reason, proof)

    def _refuse(self, name: str, code: str, reason: str, proof: Proof | None = None) -> bool:
        """Decline a lane the auto-arm chose; stop the start-up for one that was asked for. Always False."""
        by = self.orders.wanted[name][1]
        if self._is_explicit(name):
            raise LaneError(_cannot_honour(name, DecidedBy.of(by), reason))
        self.registry.decline(name, code, reason, by, proof)
        return False

    def _withdraw(self, name: str) -> None:
        """Undo one lane, after those that stand on it, and check that the stock parts are back: they will serve."""
        lanes = self.orders.lanes
        for entry in self.stack[::-1]:
            if entry.name != name and name not in order.required_by(lanes, entry.name):
                continue
            self.stack.remove(entry)
            try:
                entry.installed.undo()
            except Exception as error:
                raise LaneError(_not_undone(entry.name, describe(error))) from error
            changed = [seam for seam, value in _seams(entry.parts).items() if value is not entry.before[seam]]
            if changed:
                raise LaneError(_not_undone(entry.name, f"its undo left parts.{changed[0]} replaced"))

    def _declined_requirement(self, name: str) -> str | None:
        for other in self._lane(name).requires:
            verdict = self.registry.so_far(other)
            if verdict is not None and verdict.state is State.DECLINED:
                return f"it requires {other}, which is declined: {clause(verdict.reason)}"
        return None

    def _check_wanted(self) -> None:
        missing = [name for name in self.orders.lanes if name not in self.orders.wanted]
        if missing:
            raise StampError(f"lanes without a value: {', '.join(missing)}; run the auto-arm before installing lanes")

    def _check_asked(self) -> None:
        """Refuse what can be known to fail before weights are loaded."""
        for name in self.orders.lanes:
            value, by = self.orders.wanted[name]
            if not (value and self._is_explicit(name)):
                continue
            answer = supports(self._lane(name), self.orders.evidence)
            if not answer.ok:
                raise LaneError(_cannot_honour(name, DecidedBy.of(by), answer.reason))
            for other in order.required_by(self.orders.lanes, name):
                if not self.orders.wanted[other][0]:
                    reason = f"it requires {other}, which is declined: {clause(self.orders.decisions[other].reason)}"
                    raise LaneError(_cannot_honour(name, DecidedBy.of(by), reason))

    def _is_explicit(self, name: str) -> bool:
        return DecidedBy.of(self.orders.wanted[name][1]).source != AUTO_ARM

    def _lane(self, name: str) -> LaneSpec:
        return self.orders.lanes[name]


def _cannot_honour(name: str, by: DecidedBy, reason: str) -> str:
    origin = f"{by.source}, {by.text}" if by.text else by.source
    fix = f"set lanes.{name}=false to start without it"
    return f"lane {name} was asked for ({origin}) but cannot serve: {clause(reason)}; {fix}"


def _not_undone(name: str, reason: str) -> str:
    return f"lane {name} failed its proof and could not be undone ({reason}); set lanes.{name}=false"


def _seams(parts: EngineParts | None) -> dict[str, Any]:
    return {} if parts is None else {seam: getattr(parts, seam, None) for seam in SEAMS}


def _restore(parts: EngineParts | None, before: Mapping[str, Any]) -> None:
    """An installation that raised half-way may have replaced a seam without telling how to put it back."""
    for seam, value in _seams(parts).items():
        if value is not before[seam]:
            setattr(parts, seam, before[seam])
