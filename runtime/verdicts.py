"""Verdicts: what became of every lane of the catalogue, in one registry for each engine.

A lane is `declined`, `armed` (installed and proved), or `engaged` (armed, and its code has run since serving began).
Nothing but a lane's own latch engages it: the state is read from the latch each time and never stored.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, Protocol

from mtrun.lanes.contract import Evidence, Exactness, Installed, LaneSpec, Latch, Proof
from mtrun.runtime.errors import LaneError, StampError

SCHEMA = "mtrun.audit/1"


class State(StrEnum):
    """What a lane can come to."""

    DECLINED = "declined"
    ARMED = "armed"
    ENGAGED = "engaged"


class ProvenanceLike(Protocol):
    """Where a value came from. `source` is one of default, group file, profile file, user file, command line, auto-arm,
    derived; `text` is the file, override or sentence that set it."""

    @property
    def source(self) -> str: ...

    @property
    def text(self) -> str: ...


@dataclass(frozen=True)
class DecidedBy:
    """A provenance, copied out of the configuration."""

    source: str
    text: str

    @classmethod
    def of(cls, provenance: ProvenanceLike) -> DecidedBy:
        source = provenance.source
        return cls(str(source.value if isinstance(source, Enum) else source), provenance.text)


@dataclass(frozen=True)
class Verdict:
    """What became of one lane. Counts and times run from the moment serving began."""

    lane: str
    state: State
    code: str  # "proved" when armed; when declined: operator, not_auto, requires, excludes, ... or the lane's own code
    reason: str
    exactness: Exactness
    decided_by: DecidedBy
    proof: Proof | None = None  # None: it never came to a proof
    first_engaged_at: float | None = None  # Unix time, seconds
    engaged_count: int = 0  # calls of the lane's hot code
    served_by: str | None = None  # of an armed lane: the engaged one whose own code has done this one's work instead
    stand_asides: dict[str, int] = field(
        default_factory=dict
    )  # reason -> requests the armed lane left to the stock path


class VerdictRegistry:
    """The verdicts of one engine. Total: each lane of the catalogue gets exactly one, and none can be read before all.

    Safe to read from any thread while the inference thread serves.
    """

    def __init__(self, lanes: Mapping[str, LaneSpec]) -> None:
        self._lanes = dict(lanes)
        self._verdicts: dict[str, Verdict] = {}
        self._installed: dict[str, Installed] = {}
        self._stand_asides: dict[str, Counter[str]] = {name: Counter() for name in lanes}
        self._serving_since: float | None = None
        self._lock = threading.Lock()

    def decline(
        self, lane: str, code: str, reason: str, decided_by: ProvenanceLike, proof: Proof | None = None
    ) -> None:
        """The stock path serves; `proof` is the failed one, if any. Raises LaneError on a second verdict."""
        self._settle(lane, State.DECLINED, code, reason, decided_by, proof)

    def arm(self, lane: str, installed: Installed, proof: Proof, decided_by: ProvenanceLike) -> None:
        """The lane is in place and proved. Raises LaneError on a second verdict."""
        self._settle(lane, State.ARMED, "proved", proof.reason, decided_by, proof)
        self._installed[lane] = installed

    def so_far(self, lane: str) -> Verdict | None:
        """For the installation alone: the verdict before serving began, None while the lane is undecided."""
        return self._verdicts.get(lane)

    @property
    def undecided(self) -> tuple[str, ...]:
        return tuple(name for name in self._lanes if name not in self._verdicts)

    @property
    def serving_since(self) -> float | None:
        """Unix time in seconds; None before serving began."""
        return self._serving_since

    def start_serving(self) -> None:
        """Forget what proofs and warm-up ran: code that runs from now on engages. Raises StampError if incomplete."""
        self._require_complete()
        with self._lock:
            for installed in self._installed.values():
                _refresh(installed).reset()
            for counter in self._stand_asides.values():
                counter.clear()
            self._serving_since = time.time()

    def stand_aside(self, lane: str, reason: str) -> None:
        """Count a request that the lane left to the stock path. Never raises into a reply for a lane that exists."""
        if lane not in self._lanes:
            raise LaneError(self._unknown(lane))
        with self._lock:
            self._stand_asides[lane][reason] += 1

    def verdict(self, lane: str) -> Verdict:
        """Raises StampError while any lane is undecided, LaneError for a name outside the catalogue."""
        self._require_complete()
        if lane not in self._verdicts:
            raise LaneError(self._unknown(lane))
        with self._lock:
            return self._current(lane)

    def verdicts(self) -> tuple[Verdict, ...]:
        """All of them in catalogue order. Raises StampError while any lane is undecided."""
        self._require_complete()
        with self._lock:
            return tuple(self._current(name) for name in self._lanes)

    def to_json(self, evidence: Evidence, law: Mapping[str, Any]) -> dict[str, Any]:
        """The audit: the one object that the boot table, `mtrun audit`, /health, /verdicts and receipts share.

        {schema, versions{mtrun, mlx, mlx-lm, python}, device{system, machine, device, threads}, pack{...PackEvidence},
        law{as given: name, rule, parameters, distribution_exact, where each came from}, serving_since, summary,
        lanes[{lane, state, code, reason, exactness, decided_by{source, text}, proof{ok, reason, figures} or null,
        first_engaged_at, engaged_count, served_by, stand_asides{reason: count}}]}, lanes in catalogue order. Null means
        absent; times are Unix seconds; a figure that is not finite is null. Fields may be added under the same schema
        number; none changes its meaning or disappears.
        """
        verdicts = self.verdicts()
        return {
            "schema": SCHEMA,
            "versions": versions(),
            "device": _device(evidence),
            "pack": _pack(evidence),
            "law": dict(law),
            "serving_since": self._serving_since,
            "summary": summary(verdicts),
            "lanes": [_verdict_json(verdict) for verdict in verdicts],
        }

    def _settle(
        self, lane: str, state: State, code: str, reason: str, decided_by: ProvenanceLike, proof: Proof | None
    ) -> None:
        if lane not in self._lanes:
            raise LaneError(self._unknown(lane))
        if lane in self._verdicts:
            raise LaneError(f"lane {lane} already has a verdict ({self._verdicts[lane].state.value}): give it only one")
        exactness = self._lanes[lane].exactness
        self._verdicts[lane] = Verdict(lane, state, code, reason, exactness, DecidedBy.of(decided_by), proof)

    def _current(self, lane: str) -> Verdict:
        verdict = self._verdicts[lane]
        if self._serving_since is None:
            return verdict
        verdict = replace(verdict, stand_asides=dict(self._stand_asides[lane]))
        installed = self._installed.get(lane)
        if installed is None:
            return verdict
        latch = _refresh(installed)
        if latch.count == 0:
            return self._armed(verdict)
        return replace(verdict, state=State.ENGAGED, first_engaged_at=latch.first, engaged_count=latch.count)

    def _armed(self, verdict: Verdict) -> Verdict:
        """The verdict of a lane whose code has not run; it stays armed, and says so where another does its work."""
        for name, other in self._installed.items():
            if verdict.lane in other.serves_for and _refresh(other).count > 0:
                reason = f"{verdict.reason.rstrip('.')}; its work is done by {name}."
                return replace(verdict, reason=reason, served_by=name)
        return verdict

    def _unknown(self, lane: str) -> str:
        return f"there is no lane {lane}: name one of {', '.join(self._lanes)}"

    def _require_complete(self) -> None:
        if self.undecided:
            raise StampError(f"lanes without a verdict: {', '.join(self.undecided)}; arm both stages before asking")


def summary(verdicts: Iterable[Verdict]) -> str:
    """One line, such as "6 lanes: 4 armed, 2 declined". Engaged lanes are counted apart from armed ones."""
    counts = Counter(verdict.state for verdict in verdicts)
    parts = [
        f"{counts[state]} {state.value}" for state in (State.ENGAGED, State.ARMED, State.DECLINED) if counts[state]
    ]
    total = sum(counts.values())
    return f"{total} lane{'' if total == 1 else 's'}: {', '.join(parts) or 'none'}"


def versions() -> dict[str, str | None]:
    """Versions of what decides the output; null where a distribution is not installed. Imports none of them."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for name in ("mtrun", "mlx", "mlx-lm"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return {**found, "python": platform.python_version()}


def _refresh(installed: Installed) -> Latch:
    """The lane's latch as of now."""
    if installed.latch_reader is not None:
        installed.latch_reader(installed.latch)
    return installed.latch


def _device(evidence: Evidence) -> dict[str, Any]:
    return {
        "system": evidence.system,
        "machine": evidence.machine,
        "device": evidence.device,
        "threads": evidence.threads,
    }


def _pack(evidence: Evidence) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(evidence.pack)


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    proof = verdict.proof
    return {
        "lane": verdict.lane,
        "state": verdict.state.value,
        "code": verdict.code,
        "reason": verdict.reason,
        "exactness": verdict.exactness.value,
        "decided_by": {"source": verdict.decided_by.source, "text": verdict.decided_by.text},
        "proof": None if proof is None else {"ok": proof.ok, "reason": proof.reason, "figures": _figures(proof)},
        "first_engaged_at": verdict.first_engaged_at,
        "engaged_count": verdict.engaged_count,
        "served_by": verdict.served_by,
        "stand_asides": dict(sorted(verdict.stand_asides.items())),
    }


def _figures(proof: Proof) -> dict[str, float | None]:
    return {name: float(value) if math.isfinite(value) else None for name, value in proof.figures.items()}
