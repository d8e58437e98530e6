"""Time from logits to filtered rows: the reference on NumPy and MLX arrays (evaluated) against the native kernel.

Four rows, what a cycle of three drafts verifies, over the default pack's vocabulary; one filter a group.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from mtrun.kernels.arrays import Array
from mtrun.kernels.native.library import open_library
from mtrun.kernels.native.rows import RowFilters
from mtrun.kernels.rows import RowFilter, filter_rows

ROWS = 4
FILTERS = {
    "compact": RowFilter(1.0, 0.95, 20),
    "dense": RowFilter(0.7, 0.9),
    "greedy": RowFilter(0.0),
}


@pytest.mark.parametrize("how", FILTERS)
def test_the_reference_on_numpy(benchmark: BenchmarkFixture, logits: np.ndarray, how: str) -> None:
    benchmark.group = f"rows {how}"
    rows = benchmark(filter_rows, logits[:ROWS], FILTERS[how])
    assert np.allclose(rows.probs.sum(-1), 1.0)


@pytest.mark.parametrize("how", FILTERS)
def test_the_reference_on_mlx(benchmark: BenchmarkFixture, logits: np.ndarray, how: str) -> None:
    given = mx.array(logits[:ROWS])
    mx.eval(given)

    def rows() -> Array:
        found = filter_rows(given, FILTERS[how])
        mx.eval(found.probs, *([] if found.ids is None else [found.ids]))
        return found.probs

    benchmark.group = f"rows {how}"
    assert np.allclose(np.array(benchmark(rows)).sum(-1), 1.0)


@pytest.mark.parametrize("how", FILTERS)
def test_the_native_kernel(benchmark: BenchmarkFixture, logits: np.ndarray, isa: str, how: str) -> None:
    filters = RowFilters(open_library(), isa)
    benchmark.group = f"rows {how}"
    benchmark.extra_info["isa"] = isa
    ids, probs = benchmark(filters.filter, logits[:ROWS], FILTERS[how])
    wanted = filter_rows(logits[:ROWS], FILTERS[how])
    assert np.allclose(probs, wanted.probs, atol=1e-5)
    assert (ids is None) == (wanted.ids is None)
