"""Lane: target rows are filtered by a fused kernel: temperature, support and probabilities without sorting the row.

On the CPU it is native code (`kernels/native/rows.py`), with Metal one threadgroup a row (`kernels/metal/rows.py`).
Rows that the Metal kernel does not serve (greedy, dense) go the way they went before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage

TOLERANCE = 1e-5  # of a probability; the exponentials are float32
ROWS = 4


@dataclass(frozen=True)
class RowKernel:
    """The lane: replaces `parts.target_rows`."""

    name: str = "row_kernel"
    summary: str = "fused kernel from logits to filtered target rows: no full-vocabulary sort"
    exactness: Exactness = Exactness.ROUNDING
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    auto: bool = True

    def supports(self, evidence: Evidence) -> Decision:
        if evidence.device == "metal":
            return Decision(True, "supported", "The Metal kernel serves rows of up to 256 slots.")
        if evidence.native_library is None:
            return Decision(False, "not_built", "The native library was not built: reinstall where a C++ compiler is.")
        if evidence.native_isa is None:
            return Decision(False, "not_usable", "The native library does not fit this install: install mtrun again.")
        return Decision(True, "supported", f"{evidence.native_isa} kernels filter rows here.")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        assert parts is not None
        stock, latch = parts.target_rows, Latch()
        kernel = _metal(stock) if evidence.device == "metal" else _native(evidence)

        def hot(logits: Any, how: Any) -> Any:
            latch.hit()
            return kernel(logits, how)

        def undo() -> None:
            parts.target_rows = stock

        parts.target_rows = hot
        return Installed(undo, latch, hot, before=stock)

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """The same ids and probabilities as the rows that were built before, on logits of the real width: random ones,
        and ones with ties at the peak and at every boundary.
        """
        import numpy as np

        from mtrun.kernels.arrays import of_module
        from mtrun.kernels.rows import RowFilter

        assert parts is not None
        assert installed.hot is not None
        filters = (RowFilter(1.0, 0.95, 20), RowFilter(0.7, 0.9, 0), RowFilter(1.3, 1.0, 50, 0.1), RowFilter(0.0))
        worst = 0.0
        for how, tied in itertools.product(filters, (False, True)):
            logits = of_module(_logits(parts.trunk.vocab_size, tied), parts.trunk.xp)
            ours, stock = installed.hot(logits, how), installed.before(logits, how)
            if (ours.ids is None) != (stock.ids is None):
                return Proof(False, f"Rows under {how} have another layout.")
            if ours.ids is not None and not np.array_equal(np.array(ours.ids), np.array(stock.ids)):
                return Proof(False, f"Rows under {how} hold other tokens.")
            errors = np.abs(np.array(ours.probs) - np.array(stock.probs))
            worst = float(np.max([worst, np.max(errors)]))  # NaN stays NaN
        figures = {"max_error": worst}
        if not worst <= TOLERANCE:
            return Proof(False, f"Probabilities differ by {worst:.1e}.", figures)
        return Proof(True, f"Ids are equal and probabilities agree to {worst:.1e}.", figures)


def _logits(vocab: int, tied: bool) -> Any:
    """[ROWS, V] float32, rows apart by more than their width, as a forward's are."""
    import numpy as np

    logits = np.random.default_rng(0).normal(0.0, 3.0, (ROWS, vocab + 32)).astype(np.float32)
    return (np.minimum(np.round(2 * logits) / 2, 6.0) if tied else logits)[:, :vocab]


def _native(evidence: Evidence) -> Callable[[Any, Any], Any]:
    """Filters on the host, whatever module the logits are of; rows come back in that module."""
    import numpy as np

    from mtrun.kernels.arrays import namespace, of_module
    from mtrun.kernels.native.library import open_library
    from mtrun.kernels.native.rows import RowFilters
    from mtrun.kernels.rows import Rows

    assert evidence.native_isa is not None
    filters = RowFilters(open_library(), evidence.native_isa)

    def rows(logits: Any, how: Any) -> Any:
        xp = namespace(logits)
        ids, probs = filters.filter(np.asarray(logits), how)
        if xp is np:
            return Rows(ids, probs)
        return Rows(None if ids is None else of_module(ids, xp), xp.array(probs, dtype=xp.float64))

    return rows


def _metal(stock: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    from mtrun.kernels.metal.rows import metal_rows

    def rows(logits: Any, how: Any) -> Any:
        served = not how.greedy and how.compact(logits.shape[-1])
        return metal_rows(logits, how).rows if served else stock(logits, how)

    return rows


LANE = RowKernel()
