"""Typical acceptance, in its published form and executed by speculative sampling.

Source: Cai et al., "Medusa" (arXiv 2401.10774), typical acceptance: keep v iff p(v) > min(eps, threshold exp(-H(p))).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from mtrun.kernels.arrays import namespace
from mtrun.runtime.acceptance.cascade import token_rule
from mtrun.runtime.acceptance.law import Block, Judgement, leading


def entropy(p: Any) -> Any:
    """[D, 1] entropy of rows p [D, U] in nats, with 0 log 0 = 0: filtered rows are full of zeros."""
    xp = namespace(p)
    return -xp.sum(p * xp.log(xp.where(p > 0, p, 1)), axis=-1, keepdims=True)


def typical_set(p: Any, threshold: float, eps: float) -> Any:
    """[D, U] bool: p(v) > min(eps, threshold exp(-H(p))), strict."""
    xp = namespace(p)
    # mx.exp works in float32 precision whatever its dtype (relative error near 4e-7); mx.power does not.
    floor = threshold * xp.power(math.e, -entropy(p))
    return p > xp.minimum(floor, eps)


@dataclass(frozen=True)
class TypicalLaw:
    """Keeps a typical draft, no coin. The first untypical one is replaced by a draw from the target row itself."""

    threshold: float
    eps: float = 1.0  # 1 never binds from below: the entropy floor alone decides
    name: str = field(default="typical", init=False, repr=False)
    rule: str | None = field(default=None, init=False, repr=False)
    distribution_exact: bool = field(default=False, init=False, repr=False)
    joint: bool = field(default=False, init=False, repr=False)
    composes_with_block: bool = field(default=False, init=False, repr=False)

    @property
    def parameters(self) -> dict[str, float]:
        return {"threshold": self.threshold, "eps": self.eps}

    def judge(self, block: Block) -> Judgement:
        """Deferred = untypical: a failed test, so every deferred position is a rejection."""
        keep = block.at(typical_set(block.p, self.threshold, self.eps))
        return Judgement(leading(keep), ~keep, block.p)


@dataclass(frozen=True)
class TypicalPiLaw:
    """The same keep set through `cascade.token_rule`: the law that typical emits, with never fewer drafts kept."""

    threshold: float
    eps: float = 1.0
    name: str = field(default="typical-pi", init=False, repr=False)
    rule: str | None = field(default=None, init=False, repr=False)
    distribution_exact: bool = field(default=False, init=False, repr=False)
    joint: bool = field(default=False, init=False, repr=False)
    composes_with_block: bool = field(default=False, init=False, repr=False)

    @property
    def parameters(self) -> dict[str, float]:
        return {"threshold": self.threshold, "eps": self.eps}

    def judge(self, block: Block) -> Judgement:
        """pi(v) = q(v) 1[v typical] + q(untypical) p(v)."""
        return token_rule(typical_set(block.p, self.threshold, self.eps), block)
