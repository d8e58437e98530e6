"""Lane: a cycle is judged in native code: rows aligned, the law applied and the next token drawn in one call.

For host arrays on compact rows. Dense rows, and a law that the library does not know, are judged as before.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage

PROBES = 24
TOLERANCE = 1e-9  # of a divergence: both sides sum float64


@dataclass(frozen=True)
class JudgeKernel:
    """The lane: replaces `parts.verify`."""

    name: str = "judge_kernel"
    summary: str = "CPU: a cycle's drafts are judged and the next token drawn in one native call"
    exactness: Exactness = Exactness.ROUNDING
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ("cpu_layer",)
    excludes: tuple[str, ...] = ()
    auto: bool = True

    def supports(self, evidence: Evidence) -> Decision:
        if evidence.law == "synthetic":
            return Decision(False, "law", "The synthetic law has no native form.")
        return Decision(True, "supported", f"The {evidence.law} law has a native form.")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        from mtrun.kernels.native.judge import NativeJudge, law_code

        assert parts is not None
        stock, latch, judge = parts.verify, Latch(), NativeJudge(parts.trunk.engine.library)

        def hot(cycle: Any) -> Any:
            code, depth = law_code(cycle.law), cycle.depth
            draft = cycle.draft_rows
            if code is None or (draft is not None and draft.ids is None):
                return stock(cycle)
            target = cycle.rows(0, depth + 1)
            if target.ids is None:
                return stock(cycle)
            latch.hit()
            uniforms = (cycle.coins, float(cycle.residual_uniform[0]), float(cycle.bonus_uniform[0]))
            done = judge.decide(code, target, draft, cycle.drafts, uniforms)
            return cycle.outcome(done.kept, done.token, done.deferred, done.divergence, done.mass)

        def undo() -> None:
            parts.verify = stock

        parts.verify = hot
        return Installed(undo, latch, hot, before=stock, serves_for=("batched_target_rows", "block_verify"))

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """The same kept count, token and decisions as the verifier it replaced, on random rows of the real width."""
        from mtrun.kernels.rows import RowFilter

        assert parts is not None
        assert installed.hot is not None
        filters, worst = (RowFilter(1.0, 0.95, 20), RowFilter(0.7, 1.0, 5), RowFilter(0.0)), 0.0
        for probe, depth in itertools.product(range(PROBES), sorted({1, max(evidence.depth, 1)})):
            cycle = parts.probe_cycle(depth, filters[probe % len(filters)], probe)
            ours, stock = installed.hot(cycle), installed.before(cycle)
            reached = min(stock.kept + 1, depth)
            decided = [(out.kept, out.token, out.deferred[:reached]) for out in (ours, stock)]
            if decided[0] != decided[1]:
                return Proof(False, f"Probe {probe} at depth {depth} was decided differently.")
            gaps = zip(ours.divergence[:reached], stock.divergence[:reached], strict=True)
            worst = max(worst, *(abs(a - b) for a, b in gaps))
        figures = {"probes": float(PROBES), "max_divergence_error": worst}
        if not worst <= TOLERANCE:
            return Proof(False, f"Divergences differ by {worst:.1e}.", figures)
        return Proof(True, "Every probe cycle was decided as by the verifier it replaces.", figures)


LANE = JudgeKernel()
