"""Pearson's test of counts against a law that is known exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

import numpy as np
from scipy import stats

DELTA = 1e-6  # false alarms a test
SMALL = 10.0  # cells expected to hold fewer are pooled into one


def p_value(seen: Iterable[Hashable], law: Mapping[Hashable, float]) -> float:
    """P(a statistic at least this large | the law holds); 0.0 for an outcome that the law gives no mass."""
    counts = Counter(seen)
    n = sum(counts.values())
    if any(law.get(outcome, 0.0) == 0.0 for outcome in counts):
        return 0.0
    expected = np.array([n * mass for mass in law.values()])
    found = np.array([counts[outcome] for outcome in law], dtype=float)
    small = expected < SMALL
    cells = [*zip(expected[~small], found[~small], strict=True), (expected[small].sum(), found[small].sum())]
    cells = [(e, f) for e, f in cells if e > 0]
    statistic = sum((f - e) ** 2 / e for e, f in cells)
    return float(stats.chi2.sf(statistic, len(cells) - 1))
