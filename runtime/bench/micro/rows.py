"""Time from logits to filtered rows: the reference on NumPy and MLX arrays (evaluated) against the native kernel.

Four rows, what a cycle of three drafts verifies, over the default pack's vocabulary; one filter a group.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from mtrun.runtime.bench.micro.case import Case, Timed, hold, native

VOCAB = 49_152  # of the default pack
ROWS = 4
TOLERANCE = 1e-5  # of a probability, between the kernel's float32 and the reference's float64


def filters() -> dict[str, Any]:
    """Name -> `RowFilter`."""
    from mtrun.kernels.rows import RowFilter

    return {"compact": RowFilter(1.0, 0.95, 20), "dense": RowFilter(0.7, 0.9), "greedy": RowFilter(0.0)}


def cases() -> tuple[Case, ...]:
    """Every filter, each way."""
    ways = {"numpy": _numpy, "mlx": _mlx, "native": _native}
    return tuple(
        Case(f"rows {name} [{ROWS}, {VOCAB}]", way, partial(setup, how))
        for name, how in filters().items()
        for way, setup in ways.items()
    )


def logits() -> Any:
    """[ROWS, VOCAB] float32 rows about as peaked as a trained model's: a normal body and a few tall tokens."""
    import numpy as np

    rng = np.random.default_rng(0)
    rows = rng.normal(0.0, 2.0, (ROWS, VOCAB))
    rows[np.arange(ROWS)[:, None], rng.integers(0, VOCAB, (ROWS, 12))] += rng.exponential(6.0, (ROWS, 12))
    return rows.astype(np.float32)


def _check(how: Any, found: Any) -> None:
    """Probabilities [ROWS, K] are those of the reference."""
    import numpy as np

    from mtrun.kernels.rows import filter_rows

    wanted = np.asarray(filter_rows(logits(), how).probs)
    hold(found.shape == wanted.shape, f"it gives rows of {found.shape}, the reference {wanted.shape}")
    hold(np.allclose(found, wanted, atol=TOLERANCE), "its probabilities are not those of the reference")


def _numpy(how: Any) -> Timed:
    from mtrun.kernels.rows import filter_rows

    return Timed(partial(filter_rows, logits(), how), lambda rows: _check(how, rows.probs))


def _mlx(how: Any) -> Timed:
    import mlx.core as mx
    import numpy as np

    from mtrun.kernels.arrays import evaluate
    from mtrun.kernels.rows import filter_rows

    given = mx.array(logits())
    mx.eval(given)

    def rows() -> Any:
        found = filter_rows(given, how)
        evaluate(found.probs, found.ids)
        return found

    return Timed(rows, lambda found: _check(how, np.array(found.probs)))


def _native(how: Any) -> Timed:
    isa = native()
    from mtrun.kernels.native import library
    from mtrun.kernels.native.rows import RowFilters

    return Timed(
        partial(RowFilters(library.open_library(), isa).filter, logits(), how),
        lambda found: _check(how, found[1]),
        {"isa": isa},
    )
