"""How a cell is called: the law that decided, read from its setting and never from its name; and whose code it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtrun.runtime.report.runs import Run

PLAIN, EXACT, TYPICAL, CASCADE = "plain", "exact", "typical", "cascade"
BLOCK = "block"  # the rule of the exact law where block verification executes it
SOURCE = "source"  # every source of the package
REFERENCE_THRESHOLD = 0.2  # the typical law that charts over alpha are drawn against


@dataclass(frozen=True)
class CellLaw:
    """The law of one cell. `alpha` is None for all but the cascades; `law` is `plain` where nothing is drafted."""

    law: str
    rule: str | None
    parameters: Mapping[str, float]
    depth: int
    block: bool  # block verification decides in place of the exact law's coins

    @property
    def alpha(self) -> float | None:
        return self.parameters.get("alpha") if self.law == CASCADE else None

    @property
    def family(self) -> str:
        """The law with its rule, without the strength."""
        return f"{self.law} {self.rule}" if self.rule and self.law == CASCADE else self.law

    @property
    def short(self) -> str:
        """For legends: `cascade opt alpha 0.25`, `typical 0.2`, `plain`."""
        numbers = [f"{value:g}" for value in (self.alpha, self.parameters.get("threshold")) if value is not None]
        return " ".join([self.family, *(["alpha"] if self.alpha is not None else []), *numbers])

    @property
    def text(self) -> str:
        """For tables."""
        if self.law == PLAIN:
            return "plain decoding"
        knobs = [f"{name} {value:g}" for name, value in self.parameters.items() if (name, value) != ("eps", 1)]
        return ", ".join([self.family, *knobs, f"depth {self.depth}", *(["block verification"] if self.block else [])])


def law_of(setting: Mapping[str, Any]) -> CellLaw:
    """The law of a setting."""
    law, depth = setting["law"], setting["config"]["draft"]["depth"]
    if depth == 0:
        return CellLaw(PLAIN, None, {}, 0, False)
    lanes = {one["lane"]: one["state"] for one in setting["audit"]["lanes"]}
    block = law["law"] == EXACT and (law["rule"] == BLOCK or lanes.get("block_verify") in ("armed", "engaged"))
    return CellLaw(law["law"], law["rule"], dict(law["parameters"]), depth, block)


@dataclass(frozen=True)
class Names:
    """What the cells of one run are called. `marks` is the label of cells whose receipts were made by other code."""

    laws: Mapping[str, CellLaw]  # cells that were measured
    short: Mapping[str, str]  # unique within the run
    text: Mapping[str, str]
    marks: Mapping[str, str]  # cell -> sentence, "" = the same code as the others


def names_of(run: Run, codes: Codes) -> Names:
    """Names every cell of a run; two cells of one law are told apart by the cell's own name."""
    laws = {cell: law_of(setting) for cell, setting in run.settings.items()}
    texts = {cell: laws[cell].text if cell in laws else state["label"] for cell, state in run.cells.items()}
    short = {cell: laws[cell].short if cell in laws else cell for cell in run.cells}
    often = Counter(short.values())
    unique = {cell: f"{name} ({cell})" if often[name] > 1 else name for cell, name in short.items()}
    marks = {cell: codes.mark(run.settings[cell]) if cell in run.settings else "" for cell in run.cells}
    return Names(laws, unique, texts, marks)


@dataclass(frozen=True)
class Codes:
    """The code behind most settings of a report; receipts made by other code are labelled."""

    usual: Mapping[str, str]  # part (`law exact`, `lane kv_q8`, `native library`, `source`) -> digest
    agree: bool  # every setting was made by this code

    def mark(self, setting: Mapping[str, Any]) -> str:
        """The label of a setting, "" where its code is that of the others. The source is named where no part is."""
        own = code_parts(setting)
        other = {part: digest for part, digest in own.items() if self.usual[part] != digest}
        named = [part for part in other if part != SOURCE] or list(other)
        return f"other code: {', '.join(f'{part} {other[part][:12]}' for part in named)}" if named else ""


def codes_of(runs: Sequence[Run]) -> Codes:
    """The code that made most receipts, part by part; among equals the one met first."""
    found: dict[str, Counter[str]] = {}
    for run in runs:
        for stated in run.made_by:
            for part, digest in code_parts(stated).items():
                found.setdefault(part, Counter())[digest] += 1
    usual = {part: counted.most_common(1)[0][0] for part, counted in sorted(found.items())}
    return Codes(usual, all(len(counted) == 1 for counted in found.values()))


def code_parts(setting: Mapping[str, Any]) -> dict[str, str]:
    """Part -> digest of its code, for the parts that a setting, or a session of a run without one, states. A law's code
    is one for all its rules."""
    found = {SOURCE: setting["code"]["source_sha256"]}
    if setting.get("law_code_sha256"):
        found[f"law {setting['law']['law']}"] = setting["law_code_sha256"]
    found |= {f"law {law}": digest for law, digest in (setting.get("laws_code_sha256") or {}).items()}
    found |= {f"lane {lane}": digest for lane, digest in (setting.get("lanes_code_sha256") or {}).items() if digest}
    if setting.get("native_sha256"):
        found["native library"] = setting["native_sha256"]
    return {part: str(digest) for part, digest in found.items()}
