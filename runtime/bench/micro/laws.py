"""Time of one judgement: a law on a block of three drafts, NumPy and MLX arrays (evaluated), compact and dense slots.

`compact` is the union of two rows of 20 tokens, `dense` a whole vocabulary, which a sampler without top_k leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from mtrun.runtime.bench.micro.case import Case, Timed, hold

DEPTH = 3
SLOTS: Mapping[str, int] = MappingProxyType({"compact": 40, "dense": 49_152})
ARRAYS = ("numpy", "mlx")
ALPHA = MappingProxyType({"tokenv3": 0.95})  # of a rule that keeps by likeness to the best token; 0.25 for the others
# Law -> the knobs it is timed under; a cascade once for each of its rules.
KNOBS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"exact": {}, "typical": {"threshold": 0.2}, "typical-pi": {"threshold": 0.2}, "synthetic": {"rate": 0.7}}
)


def laws() -> dict[str, Any]:
    """Name -> law: every law of the table, every rule of the cascades, and the exact law as a block."""
    from mtrun.lanes.block_verify import BlockVerifyLaw
    from mtrun.lanes.contract import Latch
    from mtrun.runtime.acceptance.cascade import RULES
    from mtrun.runtime.acceptance.table import LAWS, build_law

    found: dict[str, Any] = {name: build_law(name, **KNOBS[name]) for name in LAWS if name != "cascade"}
    found |= {f"cascade {rule}": build_law("cascade", rule=rule, alpha=ALPHA.get(rule, 0.25)) for rule in RULES}
    return found | {"exact block": BlockVerifyLaw(Latch())}


def cases() -> tuple[Case, ...]:
    """Every law on both kinds of arrays, compact and dense."""
    every = laws().items()
    return tuple(
        Case(f"judge {slots} [{DEPTH}, {width}]", f"{name}, {arrays}", partial(_setup, law, width, arrays))
        for slots, width in SLOTS.items()
        for name, law in every
        for arrays in ARRAYS
    )


def block(slots: int, xp: Any) -> Any:
    """A `Block` of [D, slots] rows that agree about halfway, drafts drawn from the draft rows."""
    import numpy as np

    from mtrun.kernels.arrays import accumulator
    from mtrun.runtime.acceptance.law import Block

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


def _setup(law: Any, slots: int, arrays: str) -> Timed:
    import mlx.core as mx
    import numpy as np

    from mtrun.kernels.arrays import evaluate

    given = block(slots, np if arrays == "numpy" else mx)
    evaluate(given.p, given.q, given.drafted, given.coins)

    def judge() -> Any:
        said = law.judge(given)
        evaluate(said.kept, said.deferred, said.replacement)
        return said

    def check(said: Any) -> None:
        hold(0 <= int(said.kept) <= DEPTH, f"it keeps {int(said.kept)} of {DEPTH} drafts")
        hold(said.replacement.shape == (DEPTH, slots), f"its replacement is {said.replacement.shape}")

    return Timed(judge, check)
