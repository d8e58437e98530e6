"""The laws by name: from configured numbers to an `AcceptanceLaw`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mtrun.runtime.acceptance.cascade import RULES, CascadeLaw
from mtrun.runtime.acceptance.exact import ExactLaw
from mtrun.runtime.acceptance.law import AcceptanceLaw
from mtrun.runtime.acceptance.synthetic import SyntheticLaw
from mtrun.runtime.acceptance.typical import TypicalLaw, TypicalPiLaw
from mtrun.runtime.errors import ConfigurationError


@dataclass(frozen=True)
class Knobs:
    """Every number a law may read; None = not set."""

    rule: str | None = None
    alpha: float | None = None
    threshold: float | None = None
    eps: float | None = None
    rate: float | None = None


@dataclass(frozen=True)
class Range:
    """The values that one knob may take, in numbers and in words, and one to type."""

    key: str  # the configuration key
    words: str
    example: str
    holds: Callable[[float], bool]


ALPHA = Range("cascade.alpha", "at least 0 and below 1", "cascade.alpha=0.95", lambda x: 0 <= x < 1)
THRESHOLD = Range("typical.threshold", "above 0 and at most 1", "typical.threshold=0.2", lambda x: 0 < x <= 1)
EPS = Range("typical.eps", "above 0 and at most 1", "typical.eps=0.3", lambda x: 0 < x <= 1)
RATE = Range("synthetic.rate", "from 0 to 1", "synthetic.rate=0.7", lambda x: 0 <= x <= 1)


def _number(value: float | None, knob: Range, law: str) -> float:
    """The knob's value as a float. Raises ConfigurationError when it is unset, not a number or out of range."""
    if value is None:
        raise ConfigurationError(f"The {law} law needs {knob.key}, a number {knob.words}: type {knob.example}.")
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if knob is ALPHA and number >= 1 and math.isfinite(number):
        raise ConfigurationError(
            f"{knob.key}={value} would keep drafts without a test; it must be {knob.words}: type {knob.example}, "
            "or acceptance=synthetic with a synthetic.rate to force keeps."
        )
    if not knob.holds(number):
        raise ConfigurationError(f"{knob.key}={value!r} must be a number {knob.words}: type {knob.example}.")
    return number


def _cascade(knobs: Knobs) -> AcceptanceLaw:
    known = ", ".join(RULES)
    if knobs.rule is None:
        raise ConfigurationError(f"The cascade law needs cascade.rule, one of {known}: type cascade.rule=tokenv3.")
    if knobs.rule not in RULES:
        raise ConfigurationError(f"cascade.rule={knobs.rule!r} is none of {known}: type cascade.rule=tokenv3.")
    return CascadeLaw(knobs.rule, _number(knobs.alpha, ALPHA, "cascade"))


def _typical(knobs: Knobs) -> AcceptanceLaw:
    return TypicalLaw(_number(knobs.threshold, THRESHOLD, "typical"), _eps(knobs, "typical"))


def _typical_pi(knobs: Knobs) -> AcceptanceLaw:
    return TypicalPiLaw(_number(knobs.threshold, THRESHOLD, "typical-pi"), _eps(knobs, "typical-pi"))


def _eps(knobs: Knobs, law: str) -> float:
    return 1.0 if knobs.eps is None else _number(knobs.eps, EPS, law)


@dataclass(frozen=True)
class LawEntry:
    """A law of the table: the knobs it reads and the function that builds it from them."""

    reads: frozenset[str]
    build: Callable[[Knobs], AcceptanceLaw]


LAWS: Mapping[str, LawEntry] = MappingProxyType(
    {
        "exact": LawEntry(frozenset(), lambda knobs: ExactLaw()),
        "typical": LawEntry(frozenset({"threshold", "eps"}), _typical),
        "typical-pi": LawEntry(frozenset({"threshold", "eps"}), _typical_pi),
        "cascade": LawEntry(frozenset({"rule", "alpha"}), _cascade),
        "synthetic": LawEntry(frozenset({"rate"}), lambda knobs: SyntheticLaw(_number(knobs.rate, RATE, "synthetic"))),
    }
)


def build_law(
    law: str,
    *,
    rule: str | None = None,
    alpha: float | None = None,
    threshold: float | None = None,
    eps: float | None = None,
    rate: float | None = None,
) -> AcceptanceLaw:
    """The law called `law` with its knobs. Ranges: alpha [0, 1), threshold and eps (0, 1], rate [0, 1].

    None = not set; only eps may stay unset under a law that reads it (1: no cap). Raises ConfigurationError for an
    unknown law, a knob that is missing, out of range or not a number, and a knob that the law does not read.
    """
    name = law.replace("_", "-")
    if name not in LAWS:
        raise ConfigurationError(f"acceptance={law!r} is none of {', '.join(LAWS)}: type acceptance=exact.")
    knobs = Knobs(rule, alpha, threshold, eps, rate)
    entry = LAWS[name]
    idle = [knob for knob, value in vars(knobs).items() if value is not None and knob not in entry.reads]
    if idle:
        readers = [other for other, e in LAWS.items() if idle[0] in e.reads]
        raise ConfigurationError(
            f"The {name} law does not read {idle[0]}: leave it unset, or type acceptance={readers[0]}."
        )
    return entry.build(knobs)
