"""Speculative cascades: keep the draft where the target is not worth deferring to.

Source: Narasimhan et al., "Faster Cascades via Speculative Decoding" (arXiv 2405.19261); equation and algorithm numbers
are that paper's. Row notation: p target, q draft, v drafted, A keep set (not deferred), eta = q(not A).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mtrun.kernels.arrays import namespace
from mtrun.runtime.acceptance.align import divergence
from mtrun.runtime.acceptance.exact import keep_probability, residual, usable
from mtrun.runtime.acceptance.law import Block, Judgement, leading


def token_rule(keep_set: Any, block: Block) -> Judgement:
    """Executes pi(v) = q(v) 1[v in A] + eta p(v) for a keep set A [D, U] bool (Algorithm 6).

    v in A is kept without a coin. v outside A is kept with min(1, eta p(v) / q(v)), which is not the exact law's
    coin: deferral is a property of the row, so the mass eta of all deferred tokens is what the target redistributes.
    """
    xp = namespace(block.p)
    eta = xp.sum(xp.where(keep_set, 0, block.q), axis=-1, keepdims=True)  # [D, 1]
    deferred_part = eta * block.p  # [D, U] pi - q inside A, pi outside A
    deferred = ~block.at(keep_set)
    keep = ~deferred | (block.coins < keep_probability(deferred_part, block))
    weights = xp.where(keep_set, deferred_part, xp.maximum(deferred_part - block.q, 0))  # max(0, pi - q)
    return Judgement(leading(keep), deferred, usable(weights, block.p))


def _opt(block: Block, alpha: float) -> Judgement:
    """Eq. (10): defer the whole row iff max q < max p - alpha D_TV(p, q). pi = q where not deferred, else pi = p."""
    xp = namespace(block.p)
    advantage = xp.max(block.p, axis=-1) - alpha * divergence(block.p, block.q)  # [D]
    deferred = xp.max(block.q, axis=-1) < advantage
    keep = ~deferred | (block.coins < keep_probability(block.p, block))
    return Judgement(leading(keep), deferred, residual(block.p, block))


def _peak(block: Block) -> Any:
    return namespace(block.p).max(block.p, axis=-1, keepdims=True)  # [D, 1]


def _tokenv1(block: Block, alpha: float) -> Judgement:
    """Eq. (13): A = {q(v) >= max p - alpha}."""
    return token_rule(block.q >= _peak(block) - alpha, block)


def _tokenv2(block: Block, alpha: float) -> Judgement:
    """Eq. (14): A = {p(v) >= max p - alpha}, within the support of p.

    A filtered row holds exact zeros. Where alpha reaches max p they would all enter A, and the rule would emit tokens
    that the request's own top-k or top-p removed.
    """
    return token_rule((block.p >= _peak(block) - alpha) & (block.p > 0), block)


def _tokenv3(block: Block, alpha: float) -> Judgement:
    """Eq. (15): A = {p(v) >= (1 - alpha) max p}, a min-p set with min_p = 1 - alpha."""
    return token_rule(block.p >= (1 - alpha) * _peak(block), block)


RULES: Mapping[str, Callable[[Block, float], Judgement]] = MappingProxyType(
    {"opt": _opt, "tokenv1": _tokenv1, "tokenv2": _tokenv2, "tokenv3": _tokenv3}
)


@dataclass(frozen=True)
class CascadeLaw:
    """A deferral rule of `RULES` at strength alpha. alpha = 0 is on; values of two rules are not comparable.

    Any finite alpha is computed as written; `table.build_law` refuses those that a served law may not have.
    """

    rule: str
    alpha: float
    name: str = field(default="cascade", init=False, repr=False)
    distribution_exact: bool = field(default=False, init=False, repr=False)
    joint: bool = field(default=False, init=False, repr=False)
    composes_with_block: bool = field(default=False, init=False, repr=False)

    @property
    def parameters(self) -> dict[str, float]:
        return {"alpha": self.alpha}

    def judge(self, block: Block) -> Judgement:
        """Decides each row by the rule; deferred rows (opt) or tokens (tokenv1 to 3) are decided by the target."""
        return RULES[self.rule](block, self.alpha)
