"""Ranges of numbers, written the way error messages print them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"([\[(])\s*([^,\s]+)\s*,\s*([^,\s\])]+)\s*([\])])")


@dataclass(frozen=True)
class Interval:
    """A range of finite numbers; `text` is the usual notation, such as `[0, 1)`."""

    text: str
    low: float
    high: float
    low_open: bool
    high_open: bool

    def holds(self, value: float) -> bool:
        """Whether value lies inside. NaN and the infinities never do, whatever the ends say."""
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below and value not in (float("inf"), float("-inf"))


def interval(text: str) -> Interval:
    """Read `[0, 1)`, `(0, inf)`. Raises ValueError on anything else: only the schema writes these."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an interval such as '[0, 1)'")
    left, low, high, right = match.groups()
    return Interval(text, float(low), float(high), left == "(", right == ")")
