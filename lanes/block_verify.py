"""Lane: block verification of the exact law (Sun et al., arXiv 2403.10444): never fewer tokens, the same law."""

from __future__ import annotations

import itertools
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
        from mtrun.kernels.arrays import namespace
        from mtrun.kernels.block_verify import block_verify

        self.latch.hit()
        kept, replacement = block_verify(block.p, block.q, block.drafted, block.coins)
        xp = namespace(block.p)
        return BlockJudgement(kept, xp.ones(block.coins.shape, dtype=xp.bool_), replacement)


@dataclass(frozen=True)
class BlockVerify:
    """The lane: replaces `parts.law`."""

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
        """Random blocks of the real width and depth, judged as the plain numpy rule judges them; at depth 1, where
        block and per-position rule are the same, as the law that was there before."""
        assert parts is not None
        assert installed.before is not None
        kept = 0
        for probe, depth in itertools.product(range(PROBES), sorted({1, evidence.depth})):
            block = _block(parts, depth, probe)
            judged = parts.law.judge(block)
            if (found := _difference(judged, block)) is not None:
                return Proof(False, f"Probe {probe} at depth {depth}: {found}.")
            if depth == 1 and int(judged.kept.item()) != int(installed.before.judge(block).kept.item()):
                return Proof(False, f"Probe {probe}: at depth 1 the block rule differs from the per-position rule.")
            kept += int(judged.kept.item())
        figures = {"probes": float(PROBES), "kept": float(kept)}
        return Proof(True, "Every probe block was judged as by the plain rule.", figures)


def _block(parts: EngineParts, depth: int, seed: int) -> Any:
    from mtrun.kernels.rows import RowFilter

    return parts.probe_cycle(depth, RowFilter(1.0, 0.95, 20), seed).block()


def _difference(judged: Any, block: Any) -> str | None:
    """What a judgement does otherwise than the reference; None where they agree."""
    import numpy as np

    from mtrun.kernels.block_verify import reference

    arrays = [np.array(value) for value in (block.p, block.q, block.drafted, block.coins)]
    tau, weights = reference(*arrays)
    if int(judged.kept.item()) != tau:
        return f"{judged.kept.item()} drafts kept where the rule keeps {tau}"
    if tau < len(arrays[2]) and not np.allclose(np.array(judged.replacement[tau]), weights, atol=1e-5):
        return "the replacement differs from the rule's"
    return None


LANE = BlockVerify()
