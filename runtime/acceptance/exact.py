"""The exact law, and the execution of any law pi by speculative sampling that every coin law shares.

Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192),
Algorithm 1; Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling" (arXiv 2302.01318).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx

from mtrun.runtime.acceptance.law import Block, Judgement, leading


def keep_probability(pi: mx.array, block: Block) -> mx.array:
    """[D] a(v) = min(1, pi(v) / q(v)) for pi [D, U].

    0 where q(v) = 0: such a draft breaks the contract of `Block`, and the loop raises on it at its synchronisation.
    """
    drafted_from = block.at(block.q)  # [D] q(v)
    possible = drafted_from > 0
    ratio = block.at(pi) / mx.where(possible, drafted_from, 1)
    return mx.where(possible, mx.minimum(ratio, 1), 0)


def usable(weights: mx.array, fallback: mx.array) -> mx.array:
    """weights [D, U], or the row of fallback [D, U] wherever weights has no positive entry.

    With pi = q the residual is empty and no draft is rejected. With pi within rounding of q a coin just below 1 may
    still reject while every difference rounds to 0: that token then comes from the fallback, an event as rare as the
    rounding itself.
    """
    return mx.where(mx.any(weights > 0, axis=-1, keepdims=True), weights, fallback)


def residual(pi: mx.array, block: Block) -> mx.array:
    """[D, U] unnormalised max(0, pi - q), the law of the token that replaces a rejected draft."""
    return usable(mx.maximum(pi - block.q, 0), block.p)


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
        keep = block.coins < keep_probability(block.p, block)  # strict: u = 0 never keeps a token of probability 0
        return Judgement(leading(keep), mx.ones(keep.shape, dtype=mx.bool_), residual(block.p, block))
