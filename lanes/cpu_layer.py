"""Lane: on the CPU, a whole forward of the trunk and of the MTP head is one native call on the pack's own weights.

MLX decomposes a decode step of a small model into thousands of nodes on a CPU, and multiplies quantised weights one row
at a time. The native library keeps the weights as they are stored (4 and 8 bits, or dense) in one arena of huge pages,
rounds activations to 16 bits with a scale per 32 values, and computes every row by itself: row i of a verify of D + 1
rows has the bits of the same row alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage

PROBE_TOKENS = 24
TOLERANCE = 1e-2  # of the largest logit; dense float32 weights stay far below
DIVERGENCE = 1e-4  # KL in nats between the rows of both paths, at most
GAIN = 1.1  # more threads must be so many times as fast, or one serves
ROUNDS = 7  # of timing; medians count


@dataclass(frozen=True)
class CpuLayer:
    """The lane: replaces trunk, head, cache_factory, draft_scorer and draft_ids of `parts`."""

    name: str = "cpu_layer"
    summary: str = (
        "CPU: whole forwards of trunk and head in native code on the stored weights; rows do not depend on how many "
        "are verified together"
    )
    exactness: Exactness = Exactness.ROUNDING
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ("kv_q8", "fixed_verify", "cpu_qmm")
    auto: bool = True

    def supports(self, evidence: Evidence) -> Decision:
        if evidence.device != "cpu":
            return Decision(False, "device", f"forwards run on {evidence.device}, not on the CPU")
        if evidence.native_library is None:
            return Decision(False, "not_built", "the native library was not built: reinstall where a C++ compiler is")
        if evidence.native_isa is None:
            return Decision(False, "not_usable", "the native library does not fit this install: install mtrun again")
        native = evidence.pack.native
        if native is None or not native.ok:
            reason = "nothing is known of this model's layers" if native is None else native.reason
            return Decision(False, "layer", reason)
        return Decision(True, "supported", f"{evidence.native_isa} kernels serve this model")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        from mtrun.kernels.draft import DraftLogits

        assert parts is not None
        before = _Before.of(parts)
        model = build_native(parts, evidence)
        latch = Latch()
        model.trunk.hit = latch.hit

        def score(state: Any) -> Any:
            return DraftLogits(model.trunk.project(state), None)

        parts.trunk, parts.head = model.trunk, model.head
        parts.cache_factory, parts.draft_scorer = model.trunk.new_caches, score
        if parts.draft_ids is not None:
            import numpy as np

            parts.draft_ids = np.array(parts.draft_ids, dtype=np.int32)
        return Installed(lambda: before.restore(parts), latch, model.trunk.forward, before=before)

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """Rows of random tokens near MLX's, at every width after a roll-back, and the same bits at each width."""
        assert parts is not None
        figures = _arena_figures(parts.trunk.engine)
        found, problem = _compare(parts, installed.before, max(evidence.depth, 1))
        figures |= found
        if problem is not None:
            return Proof(False, problem, figures)
        figures |= settle_threads(parts.trunk.engine, _stepper(parts), evidence.threads)
        for rows in sorted({1, 2, evidence.depth + 1}):
            figures[f"ms_{rows}_rows"] = 1e3 * median(_stepper(parts)(rows) for _ in range(ROUNDS))
        reason = (
            f"{evidence.native_isa} kernels on {int(figures['threads'])} of {evidence.threads} threads: rows within "
            f"KL {figures['max_kl']:.1e} of MLX's and the same bits at every width."
        )
        return Proof(True, reason, figures)


@dataclass(frozen=True)
class _Before:
    """The seams as they were."""

    trunk: Any
    head: Any
    cache_factory: Callable[[], list[Any]]
    draft_scorer: Any
    draft_ids: Any

    @classmethod
    def of(cls, parts: EngineParts) -> _Before:
        return cls(parts.trunk, parts.head, parts.cache_factory, parts.draft_scorer, parts.draft_ids)

    def restore(self, parts: EngineParts) -> None:
        for seam, value in vars(self).items():
            setattr(parts, seam, value)


def build_native(parts: EngineParts, evidence: Evidence) -> Any:
    """The parts' own llama trunk and head as a `kernels.native.llama.NativeModel`. Raises NativeError."""
    from mtrun.kernels.native import convert
    from mtrun.kernels.native.llama import Choices, build

    trunk, head = parts.trunk, parts.head
    args = trunk.args
    sizes = convert.sizes_of(args)
    rope = convert.rope_table(
        trunk.model.model.layers[0].self_attn.rope, sizes.head_dim, sizes.rope_traditional, trunk.context_limit
    )
    weights = convert.trunk_weights(trunk.stored(), args)
    of_head = None
    if head is not None:
        stored = {name: array for name, array in head.stored().items() if name != "draft_ids"}
        of_head = convert.head_weights(stored, args, head.max_depth, parts.draft_ids)
    assert evidence.native_isa is not None
    return build(sizes, rope, weights, of_head, Choices(evidence.native_isa, 1))


def _arena_figures(engine: Any) -> dict[str, float]:
    arena = engine.arena()
    figures = {"weights_mb": arena.used / 1e6}
    huge = arena.huge_bytes()
    return figures if huge is None else figures | {"huge_pages_mb": huge / 1e6}


def _compare(parts: EngineParts, before: _Before, depth: int) -> tuple[dict[str, float], str | None]:
    """Figures of the comparison, and what is wrong."""
    import mlx.core as mx
    import numpy as np

    count = min(PROBE_TOKENS, parts.trunk.context_limit)
    ids = np.random.default_rng(0).integers(0, parts.trunk.vocab_size, (1, count)).astype(np.int32)
    stock = before.trunk.forward(mx.array(ids), before.trunk.new_caches(), "all")
    caches = parts.trunk.new_caches()
    ours = parts.trunk.forward(ids, caches, "all")
    rows, wanted = ours.logits.copy(), np.array(stock.logits)
    figures = {
        "max_relative_error": float(np.max(np.abs(rows - wanted)) / max(float(np.max(np.abs(wanted))), 1e-9)),
        "max_kl": _max_kl(wanted, rows),
    }
    for width in range(1, min(depth + 1, count) + 1):
        caches[0].trim(width)
        again = parts.trunk.forward(ids[:, count - width :], caches, "all").logits
        if not np.array_equal(again, rows[count - width :]):
            return figures, f"the last {width} rows change with how many are verified together"
    if parts.head is not None:
        figures["head_relative_error"] = _head_error(parts, before, np.array(stock.hidden), ids)
    worst = max(figures["max_relative_error"], figures.get("head_relative_error", 0.0))
    if not worst <= TOLERANCE or not figures["max_kl"] <= DIVERGENCE:
        return figures, f"rows differ from MLX's by {worst:.1e} of the largest logit, KL {figures['max_kl']:.1e}"
    return figures, None


def _max_kl(wanted: Any, rows: Any) -> float:
    """Largest KL(wanted, rows) in nats over rows of logits [R, V]."""
    import numpy as np

    logs = []
    for logits in (wanted.astype(np.float64), rows.astype(np.float64)):
        shifted = logits - logits.max(axis=-1, keepdims=True)
        logs.append(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
    return float(np.max(np.sum(np.exp(logs[0]) * (logs[0] - logs[1]), axis=-1)))


def _head_error(parts: EngineParts, before: _Before, hidden: Any, ids: Any) -> float:
    """Largest difference of the heads' outputs for the same input, relative to the largest output."""
    import mlx.core as mx
    import numpy as np

    embedded = parts.trunk.embed(ids)
    ours = parts.head.forward(hidden, embedded, parts.head.new_caches(), 0)
    stock = np.array(before.head.forward(mx.array(hidden), mx.array(embedded), before.head.new_caches(), 0))
    return float(np.max(np.abs(ours - stock)) / max(float(np.max(np.abs(stock))), 1e-9))


def _stepper(parts: EngineParts) -> Callable[[int], float]:
    """Seconds of one verify of so many rows after a short prompt."""
    import numpy as np

    caches = parts.trunk.new_caches()
    prompt = min(32, parts.trunk.context_limit // 2)
    parts.trunk.forward(np.zeros((1, prompt), dtype=np.int32), caches, "none")

    def step(rows: int) -> float:
        start = time.perf_counter()
        parts.trunk.forward(np.zeros((1, rows), dtype=np.int32), caches, "all")
        spent = time.perf_counter() - start
        caches[0].trim(rows)
        return spent

    return step


def settle_threads(engine: Any, step: Callable[[int], float], wanted: int) -> dict[str, float]:
    """Leaves the engine on `wanted` threads where those are faster by GAIN now, else on one; says what was measured.

    A second core that others keep busy makes every barrier wait for it.
    """
    if wanted == 1:
        return {"threads": 1.0}
    seconds: dict[int, list[float]] = {1: [], wanted: []}
    for _ in range(ROUNDS):
        for threads, spent in seconds.items():
            engine.set_threads(threads)
            spent.append(step(4))
    gain = median(seconds[1]) / median(seconds[wanted])
    chosen = wanted if gain >= GAIN else 1
    engine.set_threads(chosen)
    return {"threads": float(chosen), "threads_gain": gain}


LANE = CpuLayer()
