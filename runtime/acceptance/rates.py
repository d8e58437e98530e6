"""The rates of a `Counts`, each with its own name, its own denominator and a one-line definition."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mtrun.runtime.acceptance.counts import Counts

Rate = float | list[float] | None

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "draft_acceptance": "accepted / drafted: the share of proposed draft tokens that were kept",
        "deferral_rate": "deferred / positions: the share of decided positions that the target's own law decided",
        "kept_draft_rate": "accepted / positions: the share of decided positions that kept the draft",
        "tokens_per_cycle": "1 + accepted / cycles: tokens made by one verify forward, before truncation",
        "mean_divergence": "divergence / positions: mean total variation distance D_TV(p, q) over decided positions",
        "accepted_by_depth": "accepted_by_depth[i] / cycles: the share of cycles that kept the draft at depth i + 1",
    }
)


def _ratio(count: float, of: int) -> float | None:
    return count / of if of else None


def draft_acceptance(counts: Counts) -> float | None:
    """accepted / drafted; None when nothing was drafted."""
    return _ratio(counts.accepted, counts.drafted)


def deferral_rate(counts: Counts) -> float | None:
    """deferred / positions; None when no position was decided."""
    return _ratio(counts.deferred, counts.positions)


def kept_draft_rate(counts: Counts) -> float | None:
    """accepted / positions; None when no position was decided."""
    return _ratio(counts.accepted, counts.positions)


def tokens_per_cycle(counts: Counts) -> float | None:
    """1 + accepted / cycles, at most depth + 1; None when no cycle ran."""
    return _ratio(counts.cycles + counts.accepted, counts.cycles)


def mean_divergence(counts: Counts) -> float | None:
    """Mean D_TV(p, q) over decided positions; None when there was none."""
    return _ratio(counts.divergence, counts.positions)


def accepted_by_depth(counts: Counts) -> list[float] | None:
    """[D] share of cycles that kept the draft at each depth; None when no cycle ran."""
    return [kept / counts.cycles for kept in counts.accepted_by_depth] if counts.cycles else None


def rates(counts: Counts) -> dict[str, Rate]:
    """Every rate by the names of `DEFINITIONS`."""
    return {
        "draft_acceptance": draft_acceptance(counts),
        "deferral_rate": deferral_rate(counts),
        "kept_draft_rate": kept_draft_rate(counts),
        "tokens_per_cycle": tokens_per_cycle(counts),
        "mean_divergence": mean_divergence(counts),
        "accepted_by_depth": accepted_by_depth(counts),
    }
