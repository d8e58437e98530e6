"""Shadow laws: while one law decides, what others would have made of the same rows and the same coins.

A shadow changes nothing: the verifier in force decides first, on its own rows and coins; shadows then read both on the
host. Each is told of every position that the deciding law reached, alone, so one run predicts a keep rate for any
number of laws. How far that goes:

- A position's rows follow from the tokens before it, and those were kept or drawn by the deciding law. At depth 1 every
  position stands after committed text, so the prediction is that of the other law on such text; the other law's own
  text is another sample, and a lossy law's another distribution.
- Deeper positions are reached only where the deciding law kept the drafts before them. A law that keeps more goes on
  after drafts that were rejected here, where rows agree less; one that keeps less sees a more agreeable share of them.
  So a predicted rate at depth 2 and on is not the rate which that law would measure there.
- A joint law (block verification) chooses the prefix from all coins and drafts of a cycle, later ones included, so at
  depths above 1 a visited position is no fair sample of its own draft and coin. The report says where that happened.
- At temperature 0 every law matches drafts with the argmax: there is nothing to predict and nothing is counted.

Cost: a few array operations a law and cycle, at full width where rows are dense. `Shadow.seconds` has it. Depths chosen
by time see it too, so give requests a seed where `cost_depth` is armed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from mtrun.kernels.arrays import evaluate
from mtrun.kernels.draft import stack_rows
from mtrun.kernels.rows import Rows, filter_rows
from mtrun.runtime.acceptance.align import align, divergence
from mtrun.runtime.acceptance.exact import keep_probability
from mtrun.runtime.acceptance.law import AcceptanceLaw, Block
from mtrun.runtime.acceptance.typical import typical_set
from mtrun.runtime.decode.verify import Outcome, Verify, VerifyCycle
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.parts import Parts

VALIDITY = "valid position by position, on prefixes that the deciding law visited, and there alone"
JOINT = "a joint law decided deeper cycles: which of their positions were visited depends on the drafts at them"


@dataclass(frozen=True)
class Form:
    """A law in closed form at R positions [R, U]: what it would do with the drafted token v, before its coin."""

    keep: np.ndarray  # [R] probability that v is kept, over the coin
    deferred: np.ndarray  # [R] bool, the target's own law decides
    emitted: np.ndarray  # [R, U] law of the emitted token


def _exact(block: Block, knobs: Mapping[str, float]) -> Form:
    keep = keep_probability(block.p, block)
    return Form(keep, np.ones(keep.shape, dtype=np.bool_), block.p)


def _opt(block: Block, knobs: Mapping[str, float]) -> Form:
    """Eq. (10) of arXiv 2405.19261; a row that is not deferred emits q."""
    deferred = block.q.max(axis=-1) < block.p.max(axis=-1) - knobs["alpha"] * divergence(block.p, block.q)
    keep = np.where(deferred, keep_probability(block.p, block), 1.0)
    return Form(keep, deferred, np.where(deferred[:, None], block.p, block.q))


def _by_set(keep_set: np.ndarray, block: Block) -> Form:
    """Algorithm 6 of arXiv 2405.19261 for a keep set [R, U] bool: pi(v) = q(v) 1[v in A] + q(not A) p(v)."""
    eta = np.where(keep_set, 0.0, block.q).sum(axis=-1, keepdims=True)
    emitted = np.where(keep_set, block.q, 0.0) + eta * block.p
    inside = block.at(keep_set)
    return Form(np.where(inside, 1.0, keep_probability(eta * block.p, block)), ~inside, emitted)


def _tokenv1(block: Block, knobs: Mapping[str, float]) -> Form:
    return _by_set(block.q >= _peak(block) - knobs["alpha"], block)


def _tokenv2(block: Block, knobs: Mapping[str, float]) -> Form:
    return _by_set((block.p >= _peak(block) - knobs["alpha"]) & (block.p > 0), block)


def _tokenv3(block: Block, knobs: Mapping[str, float]) -> Form:
    return _by_set(block.p >= (1 - knobs["alpha"]) * _peak(block), block)


def _peak(block: Block) -> np.ndarray:
    return block.p.max(axis=-1, keepdims=True)


def _typical(block: Block, knobs: Mapping[str, float]) -> Form:
    """The law that typical-pi executes, but an untypical draft is never kept."""
    form = _typical_pi(block, knobs)
    return Form(np.where(form.deferred, 0.0, 1.0), form.deferred, form.emitted)


def _typical_pi(block: Block, knobs: Mapping[str, float]) -> Form:
    return _by_set(typical_set(block.p, knobs["threshold"], knobs["eps"]), block)


def _synthetic(block: Block, knobs: Mapping[str, float]) -> Form:
    """Keeps at a rate, and its deferrals are its rejections: they follow from the coin."""
    rate = knobs["rate"]
    keep = np.full(block.coins.shape, rate)
    return Form(keep, block.coins >= rate, rate * block.q + (1 - rate) * block.p)


# (law, rule) -> its form. Block verification of the exact law stands for the exact law's rate at one position.
FORMS: Mapping[tuple[str, str | None], Callable[[Block, Mapping[str, float]], Form]] = MappingProxyType(
    {
        ("exact", None): _exact,
        ("exact", "block"): _exact,
        ("cascade", "opt"): _opt,
        ("cascade", "tokenv1"): _tokenv1,
        ("cascade", "tokenv2"): _tokenv2,
        ("cascade", "tokenv3"): _tokenv3,
        ("typical", None): _typical,
        ("typical-pi", None): _typical_pi,
        ("synthetic", None): _synthetic,
    }
)


def form_of(law: AcceptanceLaw, block: Block) -> Form:
    """The closed form of `law`, one that `FORMS` has, on a block of NumPy float64 arrays."""
    return FORMS[law.name, law.rule](block, law.parameters)


@dataclass
class Record:
    """What one shadow has seen; sums over the visited positions."""

    law: AcceptanceLaw
    positions: int = 0
    kept: int = 0  # with the coins that were drawn
    deferred: int = 0
    expected_keep: float = 0.0  # sum of keep probabilities over the coin
    divergence: float = 0.0  # sum of D_TV(emitted law, p)
    by_depth: list[tuple[int, float]] = field(default_factory=list)  # (positions, expected_keep) at depth i + 1

    def see(self, block: Block) -> None:
        """Counts a cycle's visited positions, in their order, as NumPy arrays."""
        form = form_of(self.law, block)
        self.positions += len(form.keep)
        self.kept += int((block.coins < form.keep).sum())
        self.deferred += int(form.deferred.sum())
        self.expected_keep += float(form.keep.sum())
        self.divergence += float(divergence(block.p, form.emitted).sum())
        for at, keep in enumerate(form.keep.tolist()):
            if at == len(self.by_depth):
                self.by_depth.append((0, 0.0))
            positions, expected = self.by_depth[at]
            self.by_depth[at] = (positions + 1, expected + keep)

    def to_json(self, validity: str) -> dict[str, Any]:
        """See `Shadow.report`."""
        some = self.positions > 0
        return {
            "law": self.law.name,
            "rule": self.law.rule,
            "parameters": dict(self.law.parameters),
            "positions": self.positions,
            "kept": self.kept,
            "deferred": self.deferred,
            "expected_keep": self.expected_keep,
            "keep_rate_predicted": self.expected_keep / self.positions if some else None,
            "emitted_divergence": self.divergence,
            "mean_emitted_divergence": self.divergence / self.positions if some else None,
            "per_depth": [{"positions": count, "expected_keep": keep} for count, keep in self.by_depth],
            "validity": validity,
        }


@dataclass(frozen=True)
class Watched(VerifyCycle):
    """A cycle that keeps the target rows which its verifier filtered: they are the ones that decided."""

    seen: dict[int, tuple[Rows, int]] = field(default_factory=dict)  # position -> its run of rows, and which of them

    def rows(self, lo: int, hi: int) -> Rows:
        found = super().rows(lo, hi)
        self.seen.update({at: (found, at - lo) for at in range(lo, hi)})
        return found

    def host_rows(self, count: int) -> Rows:
        """The first `count` target rows in NumPy. A row that its verifier made without `rows` is filtered here by the
        reference, not by `target_rows`, whose latch would count a call that nobody asked for."""
        if all(at in self.seen for at in range(count)):
            return _host(stack_rows([found[at : at + 1] for found, at in (self.seen[i] for i in range(count))]))
        return _host(filter_rows(self.logits[:count], self.how))


def _host(rows: Rows) -> Rows:
    """The same rows in NumPy, float64."""
    evaluate(rows.ids, rows.probs)
    return Rows(None if rows.ids is None else np.array(rows.ids), np.array(rows.probs).astype(np.float64))


class Shadow:
    """Laws that watch an engine's parts. Belongs to the inference thread, like the parts."""

    def __init__(self, parts: Parts, laws: Mapping[str, AcceptanceLaw]) -> None:
        self.parts, self.laws = parts, dict(laws)
        self.deciding: Verify = parts.verify
        self._verify = self._watching  # one bound method, so that `undo` knows its own
        self.reset()
        parts.verify = self._verify

    def reset(self) -> None:
        """Forgets what was seen: for one report a window."""
        self.records = {name: Record(law) for name, law in self.laws.items()}
        self.joint = False  # a joint law decided a cycle of two drafts or more
        self.seconds = 0.0  # spent on shadows

    def report(self) -> dict[str, Any]:
        """{name: {law, rule, parameters, positions, kept, deferred, expected_keep, keep_rate_predicted,
        emitted_divergence, mean_emitted_divergence, per_depth [{positions, expected_keep}], validity}}, JSON types.

        expected_keep sums the keep probability of each drafted token over its coin, keep_rate_predicted is its mean;
        emitted_divergence sums D_TV(the law's emitted distribution, p). Rates are None where nothing was visited.
        """
        validity = f"{VALIDITY}; {JOINT}" if self.joint else VALIDITY
        return {name: record.to_json(validity) for name, record in self.records.items()}

    def undo(self) -> None:
        """Puts the verifier back. Raises RuntimeError when something was put over the shadows since, or undone."""
        if self.parts.verify is not self._verify:
            raise RuntimeError("the verifier was replaced after the shadows came: undo that first")
        self.parts.verify = self.deciding

    def _watching(self, cycle: VerifyCycle) -> Outcome:
        if cycle.depth == 0 or cycle.how.greedy:
            return self.deciding(cycle)
        watched = Watched(**{each.name: getattr(cycle, each.name) for each in fields(cycle)})
        outcome = self.deciding(watched)
        began = time.perf_counter()
        self._see(watched, min(outcome.kept + 1, cycle.depth))
        self.seconds += time.perf_counter() - began
        return outcome

    def _see(self, cycle: Watched, reached: int) -> None:
        assert cycle.draft_rows is not None
        self.joint = self.joint or (cycle.law.joint and cycle.depth > 1)
        drafts = np.array(cycle.drafts)[:reached]
        aligned = align(cycle.host_rows(reached), _host(cycle.draft_rows[:reached]), drafts)
        block = aligned.block(np.array(cycle.coins)[:reached].astype(np.float64))
        for record in self.records.values():
            record.see(block)


def watch(parts: Parts, laws: Mapping[str, AcceptanceLaw]) -> Shadow:
    """Lets `laws`, by the names their reports will have, watch whatever verifier is in force in `parts`.

    Call it after the lanes are armed and before a request; `Shadow.undo` takes it out, before the lanes are. Raises
    ConfigurationError for a law that has no closed form.
    """
    for law in laws.values():
        if (law.name, law.rule) not in FORMS:
            raise ConfigurationError(f"the law {law.name} has no closed form to shadow: name another")
    return Shadow(parts, laws)
