"""The synthetic law: keeps drafts at a chosen rate, whatever they say. For load tests; it is no real text law."""

from __future__ import annotations

from dataclasses import dataclass, field

from mtrun.runtime.acceptance.law import Block, Judgement, leading


@dataclass(frozen=True)
class SyntheticLaw:
    """Keeps each draft with probability `rate` in [0, 1], blind to both rows; a rejected one is replaced from p."""

    rate: float
    name: str = field(default="synthetic", init=False, repr=False)
    rule: str | None = field(default=None, init=False, repr=False)
    distribution_exact: bool = field(default=False, init=False, repr=False)
    joint: bool = field(default=False, init=False, repr=False)
    composes_with_block: bool = field(default=False, init=False, repr=False)

    @property
    def parameters(self) -> dict[str, float]:
        return {"rate": self.rate}

    def judge(self, block: Block) -> Judgement:
        """Keeps iff u < rate. Only rejections are deferred: a forced keep is no decision of the target's law."""
        keep = block.coins < self.rate
        return Judgement(leading(keep), ~keep, block.p)
