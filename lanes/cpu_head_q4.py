"""Lane: the lm_head of native forwards is rounded to 4 bits, for the trunk's rows and for drafts.

An 8-bit lm_head is a third of what a small model reads for a token. Another distribution, so nobody gets it without
asking; the embedding keeps its own weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage
from mtrun.lanes.cpu_int8 import judged, probe_rows


@dataclass(frozen=True)
class CpuHeadQ4:
    """The lane: replaces the lm_head inside `parts.trunk` and the scorer inside `parts.head`, already native."""

    name: str = "cpu_head_q4"
    summary: str = "CPU: lm_head rounded to 4 bits in native forwards; plain decoding reads less, rows change a little"
    exactness: Exactness = Exactness.LOSSY
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ("cpu_layer",)
    excludes: tuple[str, ...] = ()
    auto: bool = False

    def supports(self, evidence: Evidence) -> Decision:
        if evidence.pack.hidden_size % 32:
            return Decision(
                False, "width", f"A width of {evidence.pack.hidden_size} does not divide into groups of 32."
            )
        return Decision(True, "supported", "The lm_head can be rounded to 4 bits in groups of 32.")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        from mtrun.kernels.native.engine import Entry

        assert parts is not None
        trunk, head, latch = parts.trunk, parts.head, Latch()
        before = _Before(trunk.projection, None if head is None else head.scorer, trunk.hit)

        def hit() -> None:
            latch.hit()
            before.hit()

        def undo() -> None:
            trunk.use_projection(before.projection)
            trunk.hit = before.hit
            if head is not None:
                head.scorer = before.scorer

        trunk.use_projection(trunk.engine.add(Entry(trunk.lm_head, four_bits=True)))
        if head is not None:
            rows = head.draft_ids
            head.scorer = (
                trunk.projection if rows is None else trunk.engine.add(Entry(trunk.lm_head, rows, four_bits=True))
            )
        trunk.hit = hit
        return Installed(undo, latch, trunk.forward, before=before)

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """How far rows of random tokens move from those of the lm_head that was there before."""
        assert parts is not None
        trunk = parts.trunk
        rounded, now = probe_rows(parts), trunk.projection
        trunk.use_projection(installed.before.projection)
        try:
            wanted = probe_rows(parts)
        finally:
            trunk.use_projection(now)
        return judged(rounded, wanted)


@dataclass(frozen=True)
class _Before:
    """What was in place: indices of the engine's matrices, and who was told of forwards."""

    projection: int
    scorer: int | None
    hit: Any


LANE = CpuHeadQ4()
