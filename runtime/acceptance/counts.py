"""Counters of one request (or a sum of requests). Raw counts are kept; rates are derived when read (`rates.py`).

Identities: accepted + resamples = positions; resamples <= deferred <= positions; deferred = coin_accepted + resamples;
resamples + bonus = cycles; emitted = accepted + cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class Counts:
    """All zero when nothing was drafted."""

    cycles: int = 0  # verify forwards that judged at least one draft
    drafted: int = 0  # draft tokens proposed
    positions: int = 0  # draft positions reached and decided
    deferred: int = 0  # positions decided by the target's own law
    accepted: int = 0  # drafts kept
    coin_accepted: int = 0  # deferred positions whose coin kept the draft
    resamples: int = 0  # first rejections, each replaced by one token
    bonus: int = 0  # cycles that kept every draft and drew one more token
    emitted: int = 0  # tokens made by those cycles, before truncation by stop or max_tokens
    truncated: int = 0  # tokens of them that stop, EOS or max_tokens cut off
    divergence: float = 0.0  # sum of D_TV(p, q) over decided positions
    accepted_by_depth: list[int] = field(default_factory=list)  # [D] drafts kept at depth i + 1
    reached_by_depth: list[int] = field(default_factory=list)  # [D] positions decided at depth i + 1
    cycles_by_depth: list[int] = field(default_factory=list)  # [D] cycles that were given i + 1 drafts
    copied: int = 0  # of `drafted`: drafts that repeat earlier text; the rest are the head's
    copied_positions: int = 0  # of `positions`, likewise
    copied_accepted: int = 0  # of `accepted`, likewise
    generated: int = 0  # tokens returned to the caller
    verify_calls: int = 0  # target forwards after prefill, plain ones included

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Counts:
        """Counters as a receipt holds them; what another version counted beside them is left out."""
        return cls(**{each.name: found[each.name] for each in fields(cls) if each.name in found})

    def record(
        self,
        drafted: int,
        kept: int,
        deferred: Sequence[bool],
        divergences: Sequence[float],
        copied: bool = False,
    ) -> None:
        """Counts one cycle of `drafted` drafts of which the first `kept` were committed, all host numbers.

        deferred and divergences hold one entry a draft (the reached ones suffice). `copied`: the drafts repeat earlier
        text. A cycle without a draft is no cycle of the draft path and changes nothing. `truncated`, `generated` and
        `verify_calls` belong to the loop.
        """
        if drafted == 0:
            return
        rejected = kept < drafted
        reached = kept + rejected
        self.cycles += 1
        self.drafted += drafted
        self.positions += reached
        self.deferred += sum(map(bool, deferred[:reached]))
        self.accepted += kept
        self.coin_accepted += sum(map(bool, deferred[:kept]))
        self.resamples += rejected
        self.bonus += not rejected
        self.emitted += kept + 1
        self.divergence += sum(divergences[:reached])
        self.accepted_by_depth = _added(self.accepted_by_depth, [1] * kept + [0] * (drafted - kept))
        self.reached_by_depth = _added(self.reached_by_depth, [1] * reached + [0] * (drafted - reached))
        self.cycles_by_depth = _added(self.cycles_by_depth, [0] * (drafted - 1) + [1])
        if copied:
            self.copied += drafted
            self.copied_positions += reached
            self.copied_accepted += kept

    def add(self, other: Counts) -> None:
        """Adds every counter of another request to this one; depth lists take the longer length."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, _added(mine, theirs) if isinstance(mine, list) else mine + theirs)

    def identities(self) -> list[str]:
        """The identities that do not hold, one sentence each; empty when all do."""
        depths = list(zip(self.accepted_by_depth, self.reached_by_depth, strict=False))
        holds = {
            "No counter is negative": all(count >= 0 for count in self._numbers()),
            "accepted + resamples = positions": self.accepted + self.resamples == self.positions,
            "resamples <= deferred <= positions": self.resamples <= self.deferred <= self.positions,
            "deferred = coin_accepted + resamples": self.deferred == self.coin_accepted + self.resamples,
            "resamples + bonus = cycles": self.resamples + self.bonus == self.cycles,
            "emitted = accepted + cycles": self.emitted == self.accepted + self.cycles,
            "positions <= drafted": self.positions <= self.drafted,
            "truncated <= emitted": self.truncated <= self.emitted,
            "accepted_by_depth sums to accepted": sum(self.accepted_by_depth) == self.accepted,
            "reached_by_depth sums to positions": sum(self.reached_by_depth) == self.positions,
            # Counters written before this one was kept have none of it.
            "cycles_by_depth sums to cycles": not self.cycles_by_depth or sum(self.cycles_by_depth) == self.cycles,
            "copied drafts are some of all": self.copied_accepted <= self.copied_positions <= self.copied
            and self.copied <= self.drafted
            and self.copied_positions <= self.positions
            and self.copied_accepted <= self.accepted,
            "accepted <= reached at every depth": all(kept <= reached for kept, reached in depths),
            "A depth is reached only past a kept draft": all(
                deeper <= kept for kept, deeper in zip(self.accepted_by_depth, self.reached_by_depth[1:], strict=False)
            ),
        }
        figures = ", ".join(f"{each.name}={getattr(self, each.name)}" for each in fields(self))
        return [f"{name} does not hold for {figures}." for name, fine in holds.items() if not fine]

    def _numbers(self) -> list[float]:
        values = [getattr(self, each.name) for each in fields(self)]
        return [n for value in values for n in (value if isinstance(value, list) else [value])]


def _added(left: list[int], right: list[int]) -> list[int]:
    """Entry by entry; the shorter list is read as ending in zeros."""
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    return [a + b for a, b in zip(longer, shorter + [0] * (len(longer) - len(shorter)), strict=True)]


def pooled(records: Iterable[Mapping[str, Any]]) -> Counts:
    """Every counter summed over windows, answers or texts, each with its `counts`."""
    total = Counts()
    for record in records:
        total.add(Counts.of_json(record["counts"]))
    return total
