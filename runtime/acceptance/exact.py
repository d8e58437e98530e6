"""The exact law, and the execution of any law pi by speculative sampling that every coin law shares.

Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192),
Algorithm 1; Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling" (arXiv 2302.01318).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mtrun.kernels.arrays import namespace
from mtrun.runtime.acceptance.law import Block, Judgement, leading


def keep_probability(pi: Any, block: Block) -> Any:
    """[D] a(v) = min(1, pi(v) / q(v)) for pi [D, U].

    0 where q(v) = 0: such a draft breaks the contract of `Block`, and the loop raises on it at its synchronisation.
    """
    xp = namespace(pi)
    drafted_from = block.at(block.q)  # [D] q(v)
    possible = drafted_from > 0
    ratio = block.at(pi) / xp.where(possible, drafted_from, 1)
    return xp.where(possible, xp.minimum(ratio, 1), 0)


def usable(weights: Any, fallback: Any) -> Any:
    """weights [D, U], or the row of fallback [D, U] wherever weights has no positive entry.

    With pi = q the residual is empty and no draft is rejected. With pi within rounding of q a coin just below 1 may
    still reject while every difference rounds to 0: that token then comes from the fallback, an event as rare as the
    rounding itself.
    """
    xp = namespace(weights)
    return xp.where(xp.any(weights > 0, axis=-1, keepdims=True), weights, fallback)


def residual(pi: Any, block: Block) -> Any:
    """[D, U] unnormalised max(0, pi - q), the law of the token that replaces a rejected draft."""
    return usable(namespace(pi).maximum(pi - block.q, 0), block.p)


@dataclass(frozen=True)
class ExactLaw:
    """Emits the target's own law: pi = p, a coin at every position."""

    name: str = field(default="exact", init=False, repr=False)
    rule: str | None = field(default=None, init=False, repr=False)
    distribution_exact: bool = field(default=True, init=False, repr=False)
    joint: bool = field(default=False, init=False, repr=False)
    composes_with_block: bool = field(default=True, init=False, repr=False)

    @property
    def parameters(self) -> dict[str, float]:
        return {}

    def judge(self, block: Block) -> Judgement:
        """Keeps v iff u < min(1, p(v) / q(v)); at a rejection draws from norm(max(0, p - q)) (Algorithm 1)."""
        xp = namespace(block.p)
        keep = block.coins < keep_probability(block.p, block)  # strict: u = 0 never keeps a token of probability 0
        return Judgement(leading(keep), xp.ones(keep.shape, dtype=xp.bool_), residual(block.p, block))
