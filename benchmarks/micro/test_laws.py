"""Time of one judgement: a law on a block of three drafts, NumPy and MLX arrays (evaluated), compact and dense slots.

`compact` is the union of two rows of 20 tokens, `dense` a whole vocabulary, which a sampler without top_k leaves.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from mtrun.kernels.arrays import accumulator
from mtrun.runtime.acceptance.law import Block, Judgement
from mtrun.runtime.acceptance.table import build_law

DEPTH = 3
SLOTS = {"compact": 40, "dense": 49_152}
LAWS = {
    "exact": build_law("exact"),
    "opt": build_law("cascade", rule="opt", alpha=0.25),
    "tokenv1": build_law("cascade", rule="tokenv1", alpha=0.25),
    "tokenv2": build_law("cascade", rule="tokenv2", alpha=0.25),
    "tokenv3": build_law("cascade", rule="tokenv3", alpha=0.95),
    "typical": build_law("typical", threshold=0.2),
    "typical-pi": build_law("typical-pi", threshold=0.2),
    "synthetic": build_law("synthetic", rate=0.7),
}


def block(slots: int, xp: Any) -> Block:
    """[D, U] rows that agree about halfway, drafts drawn from the draft rows."""
    rng = np.random.default_rng(slots)
    p = rng.gamma(0.2, 1.0, (DEPTH, slots)) + 1e-12
    q = p * rng.lognormal(0.0, 1.0, (DEPTH, slots))
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    drafted = [int(rng.choice(slots, p=row)) for row in q]
    kind = accumulator(xp)
    return Block(
        p=xp.array(p, dtype=kind),
        q=xp.array(q, dtype=kind),
        drafted=xp.array(drafted, dtype=xp.int32),
        coins=xp.array(rng.random(DEPTH), dtype=kind),
    )


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("arrays", ["numpy", "mlx"])
@pytest.mark.parametrize("law", LAWS)
def test_a_judgement(benchmark: BenchmarkFixture, law: str, arrays: str, slots: str) -> None:
    xp = np if arrays == "numpy" else mx
    given = block(SLOTS[slots], xp)
    if xp is mx:
        mx.eval(given.p, given.q, given.drafted, given.coins)

    def judge() -> Judgement:
        said = LAWS[law].judge(given)
        if xp is mx:
            mx.eval(said.kept, said.deferred, said.replacement)
        return said

    benchmark.group = f"judge {slots} [{DEPTH}, {SLOTS[slots]}]"
    said = benchmark(judge)
    assert 0 <= int(said.kept) <= DEPTH
    assert said.replacement.shape == (DEPTH, SLOTS[slots])
