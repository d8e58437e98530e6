"""Time of one native forward of the embedded pack's trunk, by rows verified together, on one thread.

Each forward reads its tokens after 128 cached ones and gives a row of logits for each; the cache is trimmed back within
the measured call, which costs next to nothing.
"""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from mtrun.kernels.native.convert import rope_table, sizes_of, trunk_weights
from mtrun.kernels.native.llama import Choices, NativeTrunk, build
from mtrun.runtime.packs import llama
from mtrun.runtime.packs.embedded import embedded_packs
from mtrun.runtime.packs.reader import describe

CACHED = 128


@pytest.fixture(scope="module")
def trunk(isa: str) -> NativeTrunk:
    """nano's trunk as the lane `cpu_layer` builds it, from the weights as stored."""
    made = llama.load(describe(embedded_packs()["nano"])).trunk
    assert isinstance(made, llama.LlamaTrunk)
    sizes = sizes_of(made.args)
    rope = rope_table(
        made.model.model.layers[0].self_attn.rope, sizes.head_dim, sizes.rope_traditional, made.context_limit
    )
    return build(sizes, rope, trunk_weights(made.stored(), made.args), None, Choices(isa, 1)).trunk


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_a_forward(benchmark: BenchmarkFixture, trunk: NativeTrunk, isa: str, width: int) -> None:
    ids = np.random.default_rng(0).integers(0, trunk.vocab_size, (1, CACHED + width)).astype(np.int32)
    caches = trunk.new_caches()
    trunk.forward(ids[:, :CACHED], caches, "none")

    def forward() -> np.ndarray:
        rows = trunk.forward(ids[:, CACHED:], caches, "all").logits
        caches[0].trim(width)
        assert rows is not None
        return rows

    benchmark.group = "native forward, nano"
    benchmark.extra_info["isa"] = isa
    rows = benchmark(forward)
    assert rows.shape == (width, trunk.vocab_size)
    assert np.isfinite(rows).all()
