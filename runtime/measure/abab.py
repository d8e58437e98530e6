"""Two cells compared: mean ratio with its t interval over seeds, an exact sign-flip test, and equivalence in a margin.

The seed is the unit: rounds and prompts are averaged within it, and everything is done on the logarithm of its ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mtrun.runtime.measure.stats import Interval, Values, matched, paired_ratio

EXACT_UP_TO = 16  # seeds whose sign flips are all counted
DRAWN = 2**16  # flips drawn beyond
EQUIVALENCE_LEVEL = 0.90  # of the interval that has to lie in the margin: two one-sided tests at 5 %
DEFAULT_MARGIN = 0.02


@dataclass(frozen=True)
class SignFlip:
    """p of a mean as large as the observed one if every seed's sign were a coin. `flips` of them were counted."""

    p: float
    flips: int
    exact: bool


@dataclass(frozen=True)
class Comparison:
    """b over a. `pairs` hold every seed's two means and their ratio."""

    ratio: Interval  # 95 %
    sign_flip: SignFlip
    margin: float
    equivalence: Interval  # 90 %
    equivalent: bool | None  # None below two seeds
    different: bool | None  # the 95 % interval does not hold 1
    pairs: tuple[dict[str, float], ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"pairs": list(self.pairs), "verdict": self.verdict}

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.equivalent is None:
            return "one seed decides nothing: measure at least six"
        within = f"within {self.margin:.1%} of each other"
        if self.equivalent:
            known = ", and the difference, though small, is there" if self.different else ""
            return f"equivalent: {within}{known}"
        if self.different:
            return f"different: b is {'faster' if self.ratio.value > 1 else 'slower'}"
        return f"undecided: neither a difference nor {within}: measure more seeds"


def compare(a: Values, b: Values, margin: float) -> Comparison | None:
    """Compares two cells by positive figures of their windows, over windows that both have; None without any."""
    ratio, narrow = paired_ratio(b, a), paired_ratio(b, a, EQUIVALENCE_LEVEL)
    if ratio is None or narrow is None:
        return None
    ours, theirs = matched(b, a)
    pairs = tuple(
        {"seed": seed, "a": theirs[seed], "b": ours[seed], "ratio": ours[seed] / theirs[seed]} for seed in ours
    )
    equivalent = different = None
    if ratio.low is not None and ratio.high is not None and narrow.low is not None and narrow.high is not None:
        equivalent = 1 / (1 + margin) < narrow.low and narrow.high < 1 + margin
        different = not ratio.low <= 1 <= ratio.high
    flips = sign_flip([math.log(pair["ratio"]) for pair in pairs])
    return Comparison(ratio, flips, margin, narrow, equivalent, different, pairs)


def sign_flip(differences: Sequence[float]) -> SignFlip:
    """Two-sided test of the mean of paired differences [n], n >= 1: all 2^n sign flips up to n = 16, some beyond."""
    import numpy as np

    values = np.asarray(differences, dtype=np.float64)
    n, observed = len(values), abs(float(np.sum(values)))
    exact = n <= EXACT_UP_TO
    if exact:
        bits = (np.arange(2**n)[:, None] >> np.arange(n)[None]) & 1  # [2^n, n]
    else:
        bits = np.random.default_rng(0).integers(0, 2, (DRAWN, n))
    sums = np.abs((2 * bits - 1) @ values)
    # The observed signs are one of the flips; sums that differ by rounding alone are equal.
    extreme = int(np.sum(sums >= observed - 1e-12 * max(np.abs(values).sum(), 1e-300)))
    if exact:
        return SignFlip(extreme / 2**n, 2**n, True)
    return SignFlip((extreme + 1) / (DRAWN + 1), DRAWN, False)
