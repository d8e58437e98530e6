"""Lane: the whole verify forward of a llama-family trunk runs as one compiled graph over fixed-capacity caches.

The graph takes the position as an array, so it is traced once for each number of rows and each capacity, not at every
step. A cache that is full doubles, and its next forward of each width is traced once more. The audit counts traces
while serving: `serving_repeated_traces` above zero is a graph that was traced again without a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage

TOLERANCE = 1e-4  # of the largest stock logit: the same products, summed over more (masked) positions
PROMPT = 5  # tokens read before the first probe
ROUNDS = 3  # probes of each width, at other positions each
SMALL = PROMPT + 1  # capacity that the probes outgrow at every depth


@dataclass
class TraceLatch(Latch):
    """Also keeps what the trace counter said when serving began, and the figures in which an audit shows it."""

    traces: Any = None  # kernels.fixed_forward.Traces
    figures: dict[str, float] | None = None  # of the proof
    total: int = 0
    repeated: int = 0

    def reset(self) -> None:
        super().reset()
        self.total, self.repeated = self.traces.total, self.traces.repeated

    def show(self) -> None:
        """Writes the counts since serving began into the proof's figures."""
        if self.figures is not None:
            self.figures["serving_traces"] = float(self.traces.total - self.total)
            self.figures["serving_repeated_traces"] = float(self.traces.repeated - self.repeated)


@dataclass(frozen=True)
class FixedVerify:
    """The lane: replaces `parts.trunk` and `parts.cache_factory`."""

    name: str = "fixed_verify"
    summary: str = (
        "llama verify forward compiled once over fixed-capacity caches; on the CPU no gain was measured, so only an "
        "explicit true arms it"
    )
    exactness: Exactness = Exactness.ROUNDING
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ("kv_q8",)
    auto: bool = False

    def supports(self, evidence: Evidence) -> Decision:
        pack = evidence.pack
        if pack.family != "llama":
            return Decision(False, "family", f"The compiled forward is made for llama, and this is {pack.family}.")
        if not pack.trimmable_cache:
            return Decision(False, "cache_kind", "A layer's cache is sliding and has no fixed-capacity form.")
        gain = "; on the CPU no gain was measured" if evidence.device == "cpu" else ""
        return Decision(True, "supported", f"Every layer keeps an append-only cache{gain}.")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        from mtrun.kernels.fixed_forward import FixedCache, FixedTrunk

        assert parts is not None
        trunk, factory, latch = parts.trunk, parts.cache_factory, TraceLatch()
        hot = FixedTrunk(trunk, evidence.depth + 1, latch.hit)
        latch.traces = hot.traces

        def caches() -> list[Any]:
            return [FixedCache() for _ in factory()]

        def undo() -> None:
            parts.trunk, parts.cache_factory = trunk, factory

        parts.trunk, parts.cache_factory = hot, caches
        return Installed(undo, latch, hot.forward, before=(trunk, factory), latch_reader=_show)

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """Logits as the eager trunk's at every width, across rollbacks and growth, and one trace for each shape."""
        from mtrun.kernels.fixed_forward import FixedCache

        assert parts is not None
        assert installed.hot is not None
        assert installed.before is not None
        latch = installed.latch
        assert isinstance(latch, TraceLatch)
        stock, factory = installed.before
        figures: dict[str, float] = {"max_relative_error": 0.0}
        latch.figures = figures
        widest = evidence.depth + 1
        shapes: set[tuple[int, int]] = set()
        before, repeated, hits = latch.traces.total, latch.traces.repeated, latch.count
        for make in (parts.cache_factory, lambda: [FixedCache(SMALL) for _ in factory()]):
            caches = make()
            for width, error in _probes(installed.hot, caches, stock, factory(), widest):
                shapes.add((width, caches[0].capacity))
                if not error <= figures["max_relative_error"]:  # NaN is kept too
                    figures["max_relative_error"] = error
                if not error <= TOLERANCE:
                    return Proof(False, f"{width} rows differ from the eager trunk's by {error:.1e} of it.", figures)
        figures["traces"] = float(latch.traces.total - before)
        latch.show()
        if latch.count - hits != 2 * ROUNDS * widest:
            return Proof(False, "A forward of a verify cycle's width did not run compiled.", figures)
        if latch.traces.repeated != repeated or figures["traces"] > len(shapes):
            return Proof(False, f"{len(shapes)} shapes took {figures['traces']:.0f} traces.", figures)
        error = figures["max_relative_error"]
        return Proof(True, f"Logits equal the eager trunk's to {error:.1e}, one trace for each shape.", figures)


def _probes(
    hot: Callable[..., Any], caches: list[Any], stock: Any, plain: list[Any], widest: int
) -> Iterator[tuple[int, float]]:
    """Both trunks read the same random ids and drop the same rows after each forward; (rows, relative error) of each.

    The error is the largest difference of a logit or hidden value, in parts of the largest stock one; NaN where either
    is not a number.
    """
    import mlx.core as mx
    import numpy as np

    rng = np.random.default_rng(0)

    def draw(count: int) -> Any:
        return mx.array(rng.integers(0, stock.vocab_size, (1, count)), dtype=mx.int32)

    prompt = draw(PROMPT)
    hot(prompt, caches, "last")
    stock.forward(prompt, plain, "last")
    for number in range(ROUNDS * widest):
        width = widest - number % widest
        ids = draw(width)
        ours, theirs = hot(ids, caches, "all"), stock.forward(ids, plain, "all")
        pairs = ((ours.logits, theirs.logits), (ours.hidden, theirs.hidden))
        error = mx.max(mx.stack([mx.max(mx.abs(a - b)) / mx.max(mx.abs(b)) for a, b in pairs]))
        yield width, float(error)
        drop = int(rng.integers(0, width))
        for cache in (*caches, *plain):
            cache.trim(drop)


def _show(latch: Latch) -> None:
    assert isinstance(latch, TraceLatch)
    latch.show()


LANE = FixedVerify()
