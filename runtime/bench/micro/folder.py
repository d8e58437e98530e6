"""The folder of a micro run: `run.json` as every bench run has it, and `micro.json`, each replaced in one step.

A part is in micro.json with all its cases or not at all, so a run that was stopped goes on with the parts it lacks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mtrun.runtime.bench.folder import RunFolder
from mtrun.runtime.bench.micro.case import PARTS
from mtrun.runtime.bench.micro.record import FILE, KIND, SCHEMA, read_cases
from mtrun.runtime.bench.plan import Cell
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure.machine import PACKAGES, versions
from mtrun.runtime.measure.store import write_json

TIMER = ("pytest", "pytest-benchmark")


@dataclass(frozen=True)
class MicroPlan:
    """Everything that decides how the parts are timed. Only runs of one plan can be joined."""

    cells: tuple[Cell, ...]  # the parts
    rounds: int = 5  # the least of a case
    seconds: float = 1.0  # how long a case is timed where its rounds allow
    round_seconds: float = 0.005  # the least of a round: a short call is repeated within it
    kind: str = KIND

    @staticmethod
    def of_parts(chosen: Sequence[str] | None, **given: Any) -> MicroPlan:
        """The plan of these parts, None = all. Raises ConfigurationError for a name that is none of PARTS."""
        names = list(PARTS) if chosen is None else [name.strip() for name in chosen]
        unknown = [name for name in names if name not in PARTS]
        if unknown:
            raise ConfigurationError(f"micro has no part {unknown[0]!r}: --cells names some of {', '.join(PARTS)}")
        return MicroPlan(tuple(Cell(name, PARTS[name], ()) for name in PARTS if name in names), **given)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON types."""
        return json.loads(json.dumps(asdict(self)))


class MicroFolder(RunFolder):
    """A micro run on disk."""

    def begin(self, preflight: Mapping[str, Any]) -> None:
        """Opens a session. Raises ConfigurationError where other code would go on with the run."""
        code = code_now()
        if any(_sources(known) != _sources(code) for known in self.data["sessions"]):
            raise ConfigurationError(f"{self.path} was measured with other code: choose another --out")
        self.open_session(preflight, versions=versions((*PACKAGES, *TIMER)), **code)

    def cases(self) -> list[dict[str, Any]]:
        """Every case that was measured, or says why it was not."""
        return read_cases(self.path, self.data["plan_sha256"])

    def parts_lacking(self) -> list[str]:
        """Parts that are not in micro.json yet, in the order of measurement."""
        known = {case["cell"] for case in self.cases()}
        return [part for part in self.data["cells"] if part not in known]

    def keep(self, part: str, cases: Sequence[Mapping[str, Any]]) -> None:
        """One part more, on disk when this returns."""
        found = [*self.cases(), *({"cell": part, "session": self.session, **case} for case in cases)]
        order = list(self.data["cells"])
        found.sort(key=lambda case: order.index(case["cell"]))
        told = {"schema": SCHEMA, "plan_sha256": self.data["plan_sha256"], "cases": found}
        write_json(self.path / FILE, told, compact=True)
        self.data["cells"][part]["skipped"] = None
        self.save()

    def _missing(self) -> list[dict[str, Any]]:
        cells = self.data["cells"]
        return [{"cell": part, "reason": cells[part]["skipped"] or "not measured"} for part in self.parts_lacking()]


def code_now() -> dict[str, Any]:
    """Digests of the sources, of every law's code, and of the native library where one is built."""
    from mtrun.runtime.measure.code import code_identity
    from mtrun.runtime.measure.provenance import LAW_MODULES, law_code, native_code, native_sources

    return {
        "code": code_identity(),
        "laws_code_sha256": {law: law_code(law) for law in LAW_MODULES},
        "native_sha256": native_code(),
        "native_sources_sha256": native_sources(),
    }


def _sources(session: Mapping[str, Any]) -> tuple[Any, ...]:
    return session["code"]["source_sha256"], session["native_sha256"]
