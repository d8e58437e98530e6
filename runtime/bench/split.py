"""Where a cycle's time goes, from one extra window whose session is watched from outside.

draft: everything the drafter does, the reading of verified pairs included; verify: the trunk's forward; rows: filtering
target rows; judge: the verifier without them; commit: from its answer to the end of the cycle; rest: choosing depths,
uniforms, penalties, releasing text. Lazy MLX arrays are evaluated at each boundary, which costs what overlap and fused
graphs would have saved, so the parts add up to more than an ordinary cycle; host arrays are timed as they are. A lane
that filters inside the verifier leaves no time in `rows`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtrun.runtime.decode.decoder import Decoder
    from mtrun.runtime.decode.session import Session

PHASES = ("draft", "verify", "rows", "judge", "commit")


@dataclass
class Clock:
    """Seconds of each phase, a phase inside another taken out of it; only what happens in a cycle is counted."""

    synchronised: bool = False  # arrays were lazy and were evaluated at the boundaries
    cycles: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    judged: float | None = None  # when the verifier of the running cycle answered
    running: bool = False
    inner: list[float] = field(default_factory=list)  # for each open phase: the time that phases inside it took

    def timed(self, phase: str, call: Callable[..., Any], settle: Callable[[Any], None]) -> Callable[..., Any]:
        """`call`, counted under `phase`; `settle` waits for what it returned."""

        def hot(*given: Any, **named: Any) -> Any:
            if not self.running or self.judged is not None:
                return call(*given, **named)  # prefill, or a forward that belongs to the commit
            self.inner.append(0.0)
            began = time.perf_counter()
            found = call(*given, **named)
            settle(found)
            spent = time.perf_counter() - began
            self.seconds[phase] += spent - self.inner.pop()
            if self.inner:
                self.inner[-1] += spent
            return found

        return hot

    def step(self, call: Callable[[int], list[int]]) -> Callable[[int], list[int]]:
        """A session's `step`, with the commit counted."""

        def hot(depth: int) -> list[int]:
            self.running, self.judged = True, None
            try:
                return call(depth)
            finally:
                if self.judged is not None:
                    self.seconds["commit"] += time.perf_counter() - self.judged
                self.running, self.judged = False, None
                self.cycles += 1

        return hot

    def split_ms(self, decode_seconds: float) -> dict[str, float] | None:
        """Mean milliseconds a cycle of each phase and of the rest of `decode_seconds`; None without a cycle."""
        if not self.cycles:
            return None
        rest = max(decode_seconds - sum(self.seconds.values()), 0.0)
        return {name: 1e3 * spent / self.cycles for name, spent in {**self.seconds, "rest": rest}.items()}


class _Watched:
    """An object with one method replaced; everything else is its own."""

    def __init__(self, inner: Any, **replaced: Any) -> None:
        self._inner = inner
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def timed_sessions(decoder: Decoder) -> Iterator[Clock]:
    """Sessions that the decoder makes meanwhile are watched; afterwards it makes its own again."""
    clock, make = Clock(), decoder.session

    def session(*given: Any) -> Session:
        made = make(*given)
        _watch(made, clock)
        return made

    vars(decoder)["session"] = session
    try:
        yield clock
    finally:
        del vars(decoder)["session"]


def _watch(session: Any, clock: Clock) -> None:
    import mlx.core as mx

    clock.synchronised = session.xp is mx
    if session.drafter is not None:
        session.drafter = _Watched(session.drafter, draft=clock.timed("draft", session.drafter.draft, _settle_draft))
    session.trunk = _Watched(session.trunk, forward=clock.timed("verify", session.trunk.forward, _settle_forward))
    session.target_rows = clock.timed("rows", session.target_rows, _settle_rows)
    judge = clock.timed("judge", session.verify, lambda outcome: None)

    def verify(cycle: Any) -> Any:
        outcome = judge(cycle)
        clock.judged = time.perf_counter() if clock.running else None
        return outcome

    session.verify = verify
    session.step = clock.step(session.step)


def _settle_draft(drafted: Any) -> None:
    from mtrun.kernels.arrays import evaluate

    evaluate(drafted.tokens)
    _settle_rows(drafted.rows)


def _settle_forward(out: Any) -> None:
    from mtrun.kernels.arrays import evaluate

    evaluate(out.hidden, out.logits)


def _settle_rows(rows: Any) -> None:
    from mtrun.kernels.arrays import evaluate

    if rows is not None:
        evaluate(rows.ids, rows.probs)
