"""How deep to draft: expected tokens a second from what widths cost and what was kept, with a bound on the loss.

A cycle of d drafts costs cost(d) and is expected to make 1 + sum of products of keep probabilities tokens. The chooser
takes the best depth, and a ledger keeps it honest. Times are in plain cycles, the time in which plain decoding makes
one token:

    slack' = min(CAP, slack + (1 + EARN) * tokens - cost),   slack = LOAN at first,

and a cycle may draft only if slack stays at 0 or above even when nothing is kept. Hence after any cycles
sum of costs <= (1 + EARN) * tokens + LOAN, whatever was kept: over `BOUND_TOKENS` tokens and more at most MARGIN slower
than plain decoding, and over a shorter reply at most LOAN + EARN * tokens plain cycles later. CAP keeps a long good
stretch from paying for a long bad one.

A head reads the tokens that others made before it drafts again. A cycle that is not the head's puts up to EARN a token
aside for that, and the rest is a debt of the next cycle that is. Where reading costs more than EARN a token, the debt
of a long plain stretch can pass what the ledger may lend: then the head stays out to the end of the reply (`stranded`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MARGIN = 0.03  # the most that drafting may cost against plain decoding, from BOUND_TOKENS tokens on
EARN = 0.015  # of it, what each token may cost for good
LOAN = 1.0  # plain cycles that a reply may lose at its start, before anything is known of its drafts
BOUND_TOKENS = round(LOAN / (MARGIN - EARN))
CAP = 8.0  # plain cycles of slack that a good stretch may save up

PRIOR, WEIGHT = 0.7, 3.0  # keep probability at position 1 before anything is seen, and what it weighs in drafts
DECAY = 0.95  # of what was seen, for each draft seen at that position: about the last 20 count
FADE = 0.99  # of what was seen, for each cycle that does not look at a position: old news loses weight
BETTER = 1.04  # another depth must promise this much more than the present one
DWELL = 3  # cycles between two switches
PROBE, PROBE_LIMIT = 8, 256  # cycles to the first probe of another depth; doubled after each that found nothing
SOON = 2  # cycles from a probe that found something to the next
LIVE, CLIP = 0.1, 2.0  # weight of a measured time in the running one, and how far off it may be to count in full


@dataclass(frozen=True)
class WidthCosts:
    """Seconds of whole cycles. Every number is finite and positive, `read` may be 0."""

    plain: float  # of a cycle that drafts nothing
    drafted: Mapping[str, tuple[float, ...]]  # by source of drafts: [D] of a cycle of i + 1 drafts
    read: float = 0.0  # of the head's reading one verified pair out of a long queue


@dataclass
class Evidence:
    """What was kept at each position of one source, old news weighing less."""

    depth: int
    kept: list[float] = field(default_factory=list)  # [D]
    seen: list[float] = field(default_factory=list)  # [D]

    def __post_init__(self) -> None:
        self.kept, self.seen = [0.0] * self.depth, [0.0] * self.depth

    def record(self, drafted: int, kept: int) -> None:
        """A cycle of `drafted` drafts, of which the first `kept` stayed. 0 drafts: everything fades."""
        reached = min(kept + 1, drafted)
        for i in range(self.depth):
            looked = i < reached
            fade = DECAY if looked else FADE
            self.seen[i] = self.seen[i] * fade + looked
            self.kept[i] = self.kept[i] * fade + (looked and i < kept)

    def keeps(self) -> list[float]:
        """[D] probability that the draft at each position is kept if it is reached: what was seen, drawn towards the
        position before (a chain rarely gets surer as it goes)."""
        out, prior = [], PRIOR
        for kept, seen in zip(self.kept, self.seen, strict=True):
            prior = (kept + WEIGHT * prior) / (seen + WEIGHT)
            out.append(prior)
        return out

    def tokens(self) -> list[float]:
        """[D + 1] tokens that a cycle of 0..D drafts is expected to make."""
        out, chance = [1.0], 1.0
        for keep in self.keeps():
            chance *= keep
            out.append(out[-1] + chance)
        return out


class Costs:
    """Seconds of a cycle by source and depth, corrected by what cycles take if `live`."""

    def __init__(self, measured: WidthCosts, live: bool) -> None:
        self.measured, self.live = measured, live
        self.scale = 1.0  # what all cycles have in common: a longer context, a busier machine
        self._own: dict[tuple[str | None, int], float] = {}  # what they have not

    def seconds(self, source: str | None, depth: int) -> float:
        """Of a cycle of `depth` drafts of `source`; depth 0 is plain, whatever the source."""
        base = self.measured.drafted[source][depth - 1] if source and depth else self.measured.plain
        return base * self.scale * self._own.get(_key(source, depth), 1.0)

    def relative(self, source: str | None, depth: int) -> float:
        """The same in plain cycles."""
        return self.seconds(source, depth) / self.seconds(None, 0)

    @property
    def read(self) -> float:
        """Plain cycles that the head's reading one queued pair takes."""
        return self.measured.read * self.scale / self.seconds(None, 0)

    def observe(self, source: str | None, depth: int, seconds: float) -> None:
        """A cycle took `seconds`; one that is far off counts as if it were CLIP times off."""
        if not self.live:
            return
        ratio = min(max(seconds / self.seconds(source, depth), 1 / CLIP), CLIP)
        key = _key(source, depth)
        self.scale *= ratio ** (LIVE / 2)
        self._own[key] = self._own.get(key, 1.0) * ratio ** (LIVE / 2)


def _key(source: str | None, depth: int) -> tuple[str | None, int]:
    return (source, depth) if depth else (None, 0)


class Arm:
    """The depth in force for drafts of one source, and when to look at another."""

    def __init__(self, source: str, costs: Costs, depth: int) -> None:
        self.source, self.costs = source, costs
        self.evidence = Evidence(depth)
        self.current: int | None = None  # None: nothing was chosen yet
        self.dwelt = 0  # cycles since the last switch
        self.waited, self.patience = 0, PROBE  # cycles since the last probe, and from it to the next
        self.probes = 0
        self.probing = False  # the cycle under way is a probe

    def values(self) -> list[float]:
        """[D + 1] expected tokens a second."""
        return [tokens / self.costs.seconds(self.source, d) for d, tokens in enumerate(self.evidence.tokens())]

    def settle(self) -> int:
        """The depth in force: the best, unless the present one is nearly as good or is in force since just now."""
        values = self.values()
        best = max(range(len(values)), key=values.__getitem__)
        if self.current is None:
            self.current = best
        elif best != self.current and self.dwelt >= DWELL and values[best] > BETTER * values[self.current]:
            self.current, self.dwelt = best, 0
            self.waited, self.patience = 0, PROBE
        return self.current

    def probe(self) -> int | None:
        """Another depth that is due for a look, None = not now.

        From plain decoding the drafting depth that promises most; else one draft more than now, at which nothing is
        seen today, and by turns a plain cycle where its time counts.
        """
        assert self.current is not None
        if self.waited < self.patience:
            return None
        if self.current == 0:
            values = self.values()
            return max(range(1, len(values)), key=values.__getitem__)
        deeper = self.current < self.evidence.depth
        if self.costs.live and (self.probes % 2 or not deeper):
            return 0
        return self.current + 1 if deeper else None

    def tick(self, kept: int) -> None:
        """A cycle that this arm chose, or that drafted nothing, is over."""
        self.dwelt += 1
        self.waited += 1
        if self.probing:
            found = kept > (self.current or 0)
            self.waited, self.patience = 0, SOON if found else min(2 * max(self.patience, PROBE), PROBE_LIMIT)
            self.probes += 1
        self.probing = False


class DepthChooser:
    """The depths of one request. With `live` False no time is looked at: equal outcomes give equal depths."""

    def __init__(self, measured: WidthCosts, depth: int, live: bool) -> None:
        """depth >= 1: the deepest to choose."""
        self.costs, self.depth = Costs(measured, live), depth
        self.reads = "head" in measured.drafted
        self.arms: dict[str, Arm] = {}
        self.slack = LOAN  # plain cycles
        self.debt = 0.0  # plain cycles that the head's next cycle takes for reading beyond what was put aside

    @property
    def stranded(self) -> bool:
        """Whether the head's backlog has become too dear to ever draft with it again."""
        return self.debt > CAP

    def choose(self, source: str | None, room: int) -> int:
        """Drafts of the next cycle, 0 to room, if they come from `source`. None = there is nothing to draft with."""
        if source is None or room == 0:
            return 0
        arm = self._arm(source)
        wanted, probe = arm.settle(), arm.probe()
        if probe is not None and probe <= room and self._affordable(source, probe):
            arm.probing = True
            return probe
        values = arm.values()
        allowed = [depth for depth in range(min(wanted, room) + 1) if self._affordable(source, depth)]
        return allowed[-1] if allowed[-1] == wanted else max(allowed, key=values.__getitem__)

    def observe(self, source: str | None, drafted: int, kept: int, seconds: float) -> None:
        """What the cycle came to: `kept` of `drafted` drafts of `source` in `seconds`. source None = plain."""
        cost = self.costs.relative(source, drafted)
        if source == "head":
            cost, self.debt = cost + self.debt, 0.0
        elif self.reads:
            aside = min(self.costs.read, EARN) * (kept + 1)
            cost, self.debt = cost + aside, self.debt + self.costs.read * (kept + 1) - aside
        self.slack = min(CAP, self.slack + (1 + EARN) * (kept + 1) - cost)
        for name, arm in self.arms.items():
            mine = name == source
            arm.evidence.record(drafted if mine else 0, kept if mine else 0)
            if mine or source is None:
                arm.tick(kept)
        self.costs.observe(source, drafted, seconds)

    def _arm(self, source: str) -> Arm:
        if source not in self.arms:
            depth = min(self.depth, len(self.costs.measured.drafted[source]))
            self.arms[source] = Arm(source, self.costs, depth)
        return self.arms[source]

    def _affordable(self, source: str, depth: int) -> bool:
        """Whether slack stays at 0 or above if the cycle keeps nothing. Plain decoding always is."""
        if not depth:
            return True
        late = self.debt if source == "head" else min(self.costs.read, EARN)
        return self.slack + (1 + EARN) >= self.costs.relative(source, depth) + late
