"""Lane `cpu_blas`: on Linux, MLX's dense matrix products run in OpenBLAS instead of the reference BLAS of its wheel.

With the reference BLAS the cost of a verify forward grows linearly with its rows, and drafting cannot pay. The lane
changes rounding: OpenBLAS picks its kernel by shape, so a row of a verify block differs from the same row computed
alone by 3e-5 to 6e-5 on the logits of a small model. Greedy near-ties may fall differently; the output's law stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mtrun.kernels.blas import forwarder
from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage

PROBE_SHAPE = (64, 576, 1536)  # rows, inner, columns: one MLP product of a small model over a prefill chunk
FLOOR_GFLOPS = 5.0  # the reference BLAS reaches 1 to 3 in MLX, OpenBLAS on one thread 30 and more
REPEATS = 9  # the best of these counts: other work on the machine may only make a product slower
TOLERANCE = 1e-6  # of sum |a||b| for each element: forward error of float32 sums, with room


@dataclass(frozen=True)
class CpuBlas:
    """The lane: acts on the process, before mlx.core is imported."""

    name: str = "cpu_blas"
    summary: str = (
        "Linux CPU: dense products through OpenBLAS; a verify row is no longer bit-identical to the same row alone "
        "(3e-5 to 6e-5 on logits), so output is exact in law only. Process-wide, cannot be undone"
    )
    exactness: Exactness = Exactness.ROUNDING
    stage: Stage = Stage.PROCESS
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    auto: bool = True

    def supports(self, evidence: Evidence) -> Decision:
        if evidence.system != "Linux":
            return Decision(False, "platform", f"made for Linux; on {evidence.system} MLX keeps the BLAS it brings")
        if evidence.device != "cpu":
            return Decision(False, "device", f"products run on {evidence.device}, not on the CPU")
        if evidence.blas_forwarder is None:
            return Decision(
                False, "not_built", "the forwarding library was not built: reinstall where a C compiler is present"
            )
        if evidence.blas_target is None:
            return Decision(False, "no_target", "OpenBLAS is absent: pip install scipy-openblas32")
        if evidence.mlx_loaded and not evidence.blas_forwarder_bound:
            return Decision(
                False, "too_late", "mlx.core was imported first, too late to bind its BLAS: arm before importing mlx"
            )
        return Decision(True, "supported", "MLX will bind its products to OpenBLAS")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        bound = forwarder.bind(evidence.threads)
        return Installed(undo=_keep_bound, latch=Latch(), hot=bound.calls, latch_reader=counter_reader(bound.calls))

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        before = forwarder.calls()
        figures, agrees = _probe(evidence.threads)
        figures["calls"] = float(forwarder.calls() - before)
        if figures["calls"] <= 0:
            return Proof(False, "a matrix product in MLX did not reach OpenBLAS", figures)
        if not agrees:
            return Proof(False, "a matrix product differs from its float64 value by more than rounding", figures)
        if figures["gflops"] < FLOOR_GFLOPS:
            return Proof(False, f"a matrix product stays under the floor of {FLOOR_GFLOPS:g} GFLOP/s", figures)
        return Proof(True, "products reach OpenBLAS, pass the speed floor and agree with float64", figures)


def counter_reader(calls: Callable[[], int]) -> Callable[[Latch], None]:
    """A latch reader over a native counter: each call adds what the counter moved since the call before.

    `first` becomes the time of the reading that saw the first movement, not of the product itself. The counter belongs
    to the process: two engines in one process see each other's products.
    """
    seen = calls()

    def read(latch: Latch) -> None:
        nonlocal seen
        now = calls()
        moved, seen = now - seen, now
        if moved <= 0:
            return
        latch.count += moved
        if latch.first is None:
            latch.first = time.time()

    return read


def _keep_bound() -> None:
    """There is nothing to restore: the dynamic linker binds a name once for the life of the process."""


def _probe(threads: int) -> tuple[dict[str, float], bool]:
    """Speeds and largest error of the float32 probe, and whether products of all types agree with float64."""
    import mlx.core as mx
    import numpy as np

    rows, inner, columns = PROBE_SHAPE
    draw = np.random.Generator(np.random.PCG64(0))
    a = draw.standard_normal((rows, inner), dtype=np.float32)  # [rows, inner]
    b = draw.standard_normal((columns, inner), dtype=np.float32)  # [columns, inner], as a Linear stores it
    left, right = mx.array(a), mx.array(b)
    threaded = _gflops(left, right.T)
    # The floor tells OpenBLAS from the reference BLAS, so one thread is held to it: on a crowded machine two threads
    # wait for each other, and the verdict would depend on what else happens to run.
    forwarder.set_threads(1)
    try:
        alone = _gflops(left, right.T)
    finally:
        forwarder.set_threads(threads)
    product = np.array(mx.matmul(left, right.T, stream=mx.cpu))  # [rows, columns] float32
    exact = a.astype(np.float64) @ b.astype(np.float64).T  # [rows, columns]
    error = np.abs(product - exact)
    bound = TOLERANCE * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T)  # [rows, columns]
    agrees = bool(np.all(error <= bound)) and all(_small_products_agree(dtype) for dtype in (mx.float64, mx.complex64))
    return {"gflops": alone, "gflops_threaded": threaded, "max_abs_error": float(np.max(error))}, agrees


def _gflops(left: Any, right: Any) -> float:
    """The best of REPEATS products left [rows, inner] x right [inner, columns]."""
    rows, inner, columns = PROBE_SHAPE
    return 2e-9 * rows * inner * columns / min(_timed(left, right) for _ in range(REPEATS))


def _timed(left: Any, right: Any) -> float:
    import mlx.core as mx

    start = time.perf_counter()
    mx.eval(mx.matmul(left, right, stream=mx.cpu))
    return time.perf_counter() - start


def _small_products_agree(dtype: Any) -> bool:
    """Exact small integers: the double and complex entry points are forwarded to the right functions."""
    import mlx.core as mx
    import numpy as np

    host = np.complex64 if dtype == mx.complex64 else np.float64
    step = 1j if dtype == mx.complex64 else 1
    a = np.arange(12).reshape(3, 4).astype(host) * step  # [3, 4]
    b = np.arange(20).reshape(4, 5).astype(host) + step  # [4, 5]
    product = mx.matmul(mx.array(a, dtype=dtype), mx.array(b, dtype=dtype), stream=mx.cpu)  # [3, 5]
    return bool(np.array_equal(np.array(product), a @ b))


LANE = CpuBlas()
