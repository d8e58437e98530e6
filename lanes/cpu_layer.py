"""Lane: on the CPU, a whole forward of the trunk and of the MTP head is one native call on the pack's own weights.

MLX decomposes a decode step of a small model into thousands of nodes on a CPU, and multiplies quantised weights one row
at a time. The native library keeps the weights as they are stored (4 and 8 bits, or dense) in one arena of huge pages,
rounds activations to 16 bits with a power of two per 32 values, and computes every row by itself: row i of a verify of
D + 1 rows has the bits of the same row alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
            return Decision(False, "device", f"Forwards run on {evidence.device}, not on the CPU.")
        if evidence.native_library is None:
            return Decision(False, "not_built", "The native library was not built: reinstall where a C++ compiler is.")
        if evidence.native_isa is None:
            return Decision(False, "not_usable", "The native library does not fit this install: install mtrun again.")
        native = evidence.pack.native
        if native is None or not native.ok:
            reason = "Nothing is known of this model's layers." if native is None else native.reason
            return Decision(False, "layer", reason)
        return Decision(True, "supported", f"{evidence.native_isa} kernels serve this model.")

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
        undo = partial(before.restore, parts)
        return Installed(undo, latch, model.trunk.forward, before=before, serves_for=("cpu_blas",))

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """Each seam near MLX's on random tokens; rows of the same bits at every width, trimmed and on threads."""
        assert parts is not None
        trunk, depth = parts.trunk, max(evidence.depth, 1)
        ids, figures = _probe_ids(trunk), _arena_figures(trunk.engine)
        rows, problem = _read(trunk, ids, depth)
        errors = _errors(parts, installed.before, ids, rows)
        figures |= errors
        if problem is None:
            problem = _too_far(errors)
        if problem is None:
            figures |= settle_threads(trunk.engine, _stepper(parts), evidence.threads)
            problem = _unlike(trunk, ids, depth, rows)
        if problem is not None:
            return Proof(False, problem, figures)
        step = _stepper(parts)
        for width in sorted({1, 2, evidence.depth + 1}):
            figures[f"ms_{width}_rows"] = 1e3 * median(step(width) for _ in range(ROUNDS))
        reason = (
            f"{evidence.native_isa} kernels on {int(figures['threads'])} of {evidence.threads} threads: rows within "
            f"KL {figures['max_kl']:.1e} of MLX's and the same bits at every width."
        )
        # What MLX would need to take over again is read from the pack when it does.
        release = getattr(installed.before.trunk, "release", None)
        if release is not None:
            release()
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


def _probe_ids(trunk: Any) -> Any:
    """[1, PROBE_TOKENS] int32 random tokens, fewer where the context is shorter."""
    import numpy as np

    count = min(PROBE_TOKENS, trunk.context_limit)
    return np.random.default_rng(0).integers(0, trunk.vocab_size, (1, count)).astype(np.int32)


def _read(trunk: Any, ids: Any, depth: int) -> tuple[Any, str | None]:
    """Rows [L, V] of ids read at once, and what is wrong where the last of them read again are others."""
    import numpy as np

    caches = trunk.new_caches()
    rows = trunk.forward(ids, caches, "all").logits.copy()
    count = ids.shape[1]
    for width in range(1, min(depth + 1, count) + 1):
        for want, kept in (("all", width), ("last", 1)):
            caches[0].trim(width)
            again = trunk.forward(ids[:, count - width :], caches, want).logits
            if not np.array_equal(again, rows[count - kept :]):
                return rows, f"The last {width} rows change with how many are verified together."
    return rows, None


def _unlike(trunk: Any, ids: Any, depth: int, rows: Any) -> str | None:
    """What is wrong where the threads that will serve give other bits than the one that gave `rows`."""
    import numpy as np

    again, problem = _read(trunk, ids, depth)
    if problem is None and not np.array_equal(again, rows):
        return f"Rows change with {trunk.engine.threads} threads."
    return problem


def _errors(parts: EngineParts, before: _Before, ids: Any, rows: Any) -> dict[str, float]:
    """How far each seam is from MLX's on the same ids: relative to the largest value, and of rows also the KL."""
    import mlx.core as mx
    import numpy as np

    trunk, given = parts.trunk, mx.array(ids)
    stock = before.trunk.forward(given, before.trunk.new_caches(), "all")
    hidden = trunk.forward(ids, trunk.new_caches(), "none").hidden
    embedded, few = trunk.embed(ids), ids[0, :4]
    pairs = {
        "max_relative_error": (rows, stock.logits),
        "hidden_relative_error": (hidden, stock.hidden),
        "embedding_relative_error": (embedded, before.trunk.embed(given)),
        "scorer_relative_error": (parts.draft_scorer(hidden[0, -1:]).logits, stock.logits[-1:]),
        "lm_head_relative_error": (trunk.projection_rows(few), before.trunk.projection_rows(mx.array(few))),
    }
    if parts.head is not None:
        read = before.head.forward(stock.hidden, before.trunk.embed(given), before.head.new_caches(), 0)
        pairs["head_relative_error"] = (_head_states(parts.head, np.array(stock.hidden), embedded), read)
    errors = {name: _error(ours, np.array(wanted)) for name, (ours, wanted) in pairs.items()}
    return errors | {"max_kl": _max_kl(np.array(stock.logits), rows)}


def _head_states(head: Any, hidden: Any, embedded: Any) -> Any:
    """States [1, L, H] of a head that reads its pairs in two pieces: the second sees the first in the cache."""
    import numpy as np

    caches, half = head.new_caches(), hidden.shape[1] // 2
    pieces = [slice(0, half), slice(half, None)]
    return np.concatenate([head.forward(hidden[:, at], embedded[:, at], caches, 0) for at in pieces], axis=1)


def _error(ours: Any, wanted: Any) -> float:
    """Largest difference relative to the largest wanted value."""
    import numpy as np

    return float(np.max(np.abs(ours - wanted)) / max(float(np.max(np.abs(wanted))), 1e-9))


def _too_far(errors: dict[str, float]) -> str | None:
    """The first error beyond its bound, as a sentence. NaN is beyond every bound."""
    for name, error in errors.items():
        if not error <= (DIVERGENCE if name == "max_kl" else TOLERANCE):
            return f"Native forwards differ from MLX's: {name} is {error:.1e}."
    return None


def _max_kl(wanted: Any, rows: Any) -> float:
    """Largest KL(wanted, rows) in nats over rows of logits [R, V]."""
    import numpy as np

    logs = []
    for logits in (wanted.astype(np.float64), rows.astype(np.float64)):
        shifted = logits - logits.max(axis=-1, keepdims=True)
        logs.append(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
    return float(np.max(np.sum(np.exp(logs[0]) * (logs[0] - logs[1]), axis=-1)))


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
