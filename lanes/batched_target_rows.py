"""Lane: all D + 1 target rows are filtered and judged in one device graph, with one synchronisation a cycle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage

PROBES = 12  # random cycles compared with the verifier that was there before


def all_rows(latch: Latch) -> Callable[[Any], Any]:
    """A verifier for `runtime.decode.verify`: the whole cycle stays on the device until its one synchronisation."""

    def verify(cycle: Any) -> Any:
        from mtrun.kernels.arrays import evaluate, namespace
        from mtrun.kernels.host import flags, floats, integer

        latch.hit()
        depth = cycle.depth
        rows = cycle.rows(0, depth + 1)
        bonus = cycle.bonus(rows[depth:])
        if depth == 0:
            return cycle.outcome(0, integer(bonus), deferred=[], values=[], masses=[])
        decided = cycle.judge(rows[:depth], 0, depth)
        xp = namespace(cycle.logits)
        replaced = decided.replacement[xp.minimum(decided.kept, depth - 1)]
        token = xp.where(decided.kept < depth, replaced, bonus[0])
        evaluate(cycle.drafts, decided.kept, token, decided.deferred, decided.divergence, decided.drafted_mass)
        return cycle.outcome(
            integer(decided.kept),
            integer(token),
            deferred=flags(decided.deferred),
            values=floats(decided.divergence),
            masses=floats(decided.drafted_mass),
        )

    return verify


@dataclass(frozen=True)
class BatchedTargetRows:
    """The lane: replaces `parts.verify`."""

    name: str = "batched_target_rows"
    summary: str = "filters and judges all target rows of a cycle in one device graph, one synchronisation a cycle"
    exactness: Exactness = Exactness.EXACT
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    auto: bool = True

    def supports(self, evidence: Evidence) -> Decision:
        return Decision(True, "supported", "Every pack has target rows.")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        assert parts is not None
        stock, latch = parts.verify, Latch()
        hot = all_rows(latch)
        parts.verify = hot

        def undo() -> None:
            parts.verify = stock

        return Installed(undo, latch, hot, before=stock)

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """The same kept count, token and decisions as the verifier it replaced, on random rows of the real width."""
        from mtrun.kernels.rows import RowFilter

        assert parts is not None
        assert installed.hot is not None
        assert installed.before is not None
        filters = (RowFilter(1.0, 0.95, 20), RowFilter(0.7, 0.9, 0), RowFilter(0.0))
        for probe in range(PROBES):
            how = filters[probe % len(filters)]
            cycle = parts.probe_cycle(max(evidence.depth, 1), how, probe)
            ours, stock = installed.hot(cycle), installed.before(cycle)
            reached = min(stock.kept + 1, cycle.depth)
            decided = [(out.kept, out.token, out.deferred[:reached], out.divergence[:reached]) for out in (ours, stock)]
            if decided[0] != decided[1]:
                return Proof(False, f"Probe {probe} was decided differently from the row-by-row verifier.")
        return Proof(True, "Every probe cycle was decided as by the row-by-row verifier.", {"probes": float(PROBES)})


LANE = BatchedTargetRows()
