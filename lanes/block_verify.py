"""Lane: block verification of the exact law (Sun et al., arXiv 2403.10444): never fewer tokens, the same law."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage

PROBES = 24


class BlockJudgement(NamedTuple):
    """The fields of `runtime.acceptance.law.Judgement`."""

    kept: Any  # [] int32
    deferred: Any  # [D] bool, every position: each is decided by the target's own law
    replacement: Any  # [D, U] unnormalised


@dataclass(frozen=True)
class BlockVerifyLaw:
    """The exact law decided jointly. Implements `runtime.acceptance.law.AcceptanceLaw`."""

    latch: Latch
    name: str = "exact"
    rule: str | None = "block"
    parameters: dict[str, float] = field(default_factory=dict)
    distribution_exact: bool = True
    joint: bool = True
    composes_with_block: bool = False

    def judge(self, block: Any) -> BlockJudgement:
        import mlx.core as mx

        from mtrun.kernels.block_verify import block_verify

        self.latch.hit()
        kept, replacement = block_verify(block.p, block.q, block.drafted, block.coins)
        return BlockJudgement(kept, mx.ones(block.coins.shape, dtype=mx.bool_), replacement)


@dataclass(frozen=True)
class BlockVerify:
    name: str = "block_verify"
    summary: str = "judges all drafts of a cycle jointly: the exact law with at least as many tokens a cycle"
    exactness: Exactness = Exactness.EXACT_LAW
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    auto: bool = True

    def supports(self, evidence: Evidence) -> Decision:
        if not evidence.pack.head.ok or evidence.depth == 0:
            return Decision(False, "nothing_drafted", "Nothing is drafted, so there is no block to judge.")
        if evidence.law != "exact":
            reason = f"The {evidence.law} law builds its coins on single rows; only the exact law is judged as a block."
            return Decision(False, "law", reason)
        return Decision(True, "supported", "The exact law composes with block verification.")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        assert parts is not None
        stock, latch = parts.law, Latch()
        law = BlockVerifyLaw(latch)

        def undo() -> None:
            parts.law = stock

        parts.law = law
        return Installed(undo, latch, law.judge, before=stock)

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """On random cycles of the real width: at least as many keeps, summed, as the per-position law with equal coins
        at depth 1, where the two rules are the same rule; and a finite, usable replacement at every rejection."""
        from mtrun.kernels.rows import RowFilter

        assert parts is not None
        assert installed.before is not None
        ours = joint = 0
        for probe in range(PROBES):
            cycle = parts.probe_cycle(1, RowFilter(1.0, 0.95, 20), probe)
            block, single = _decide(cycle, parts.law), _decide(cycle, installed.before)
            if block != single:
                return Proof(False, f"Probe {probe}: at depth 1 the block rule differs from the per-position rule.")
            deep = _decide(parts.probe_cycle(max(evidence.depth, 1), RowFilter(1.0, 0.95, 20), probe), parts.law)
            ours, joint = ours + block[0], joint + deep[0]
        figures = {"probes": float(PROBES), "kept_depth_1": float(ours), "kept_full_depth": float(joint)}
        return Proof(True, "Equals the per-position rule at depth 1; every probe gave a usable replacement.", figures)


def _decide(cycle: Any, law: Any) -> tuple[int, int]:
    """(drafts kept, replacement of the first rejected or -1) of a whole cycle under a law."""
    import dataclasses

    cycle = dataclasses.replace(cycle, law=law)
    decided = cycle.judge(cycle.rows(0, cycle.depth), 0, cycle.depth)
    kept = int(decided.kept.item())
    return kept, -1 if kept == cycle.depth else int(decided.replacement[kept].item())


LANE = BlockVerify()
