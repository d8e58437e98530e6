"""Lane `cpu_qmm`: on the CPU, the linear modules of any MLX trunk and of its head multiply in the native library.

For models that the whole-step lane `cpu_layer` does not know: MLX keeps the graph, the caches and the attention, and
only the products change. Weights are packed as the pack stores them where the model can tell (`stored()`, 4 and 8
bits), else as they were loaded. A row has the same bits whatever the number of rows, so that a verify row's products
are those of the same row alone. The stock modules stay in memory beside the packed weights, and undo puts those very
modules back.

A graph that was traced before keeps the modules it was traced with, so this lane goes in before `fixed_verify`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage
from mtrun.lanes.cpu_blas import counter_reader

TOLERANCE = 1e-3  # of the largest stock logit: activations meet quantised weights as 15-bit integers
WIDTHS = (1, 4, 9)  # a step, a verify, more rows than one pass over the weights takes


@dataclass(frozen=True)
class CpuQmm:
    """The lane: replaces modules inside `parts.trunk.model` and `parts.head`."""

    name: str = "cpu_qmm"
    summary: str = (
        "CPU: linear modules of any trunk multiply in the native library inside MLX's graph; for trunks that cpu_layer "
        "does not serve, so only an explicit true arms it"
    )
    exactness: Exactness = Exactness.ROUNDING
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ("cpu_layer",)
    auto: bool = False

    def supports(self, evidence: Evidence) -> Decision:
        if evidence.device != "cpu":
            return Decision(False, "device", f"Products run on {evidence.device}, not on the CPU.")
        if evidence.mlx_primitive is None:
            return Decision(
                False, "not_built", "The MLX primitive was not built: reinstall where a C++ compiler is present."
            )
        return Decision(True, "supported", "Linear modules can multiply in the native library.")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        """Raises NativeError: the extension does not fit this mlx, or nothing can be packed."""
        from mtrun.kernels.native.mlx_primitive.modules import pack

        assert parts is not None
        swaps = pack(_models(parts), evidence.native_isa or "auto", evidence.threads)
        swaps.put()
        calls = swaps.matrices.calls
        return Installed(swaps.back, Latch(), calls, before=swaps, latch_reader=counter_reader(calls))

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """Logits, and the head's states, as the stock modules give them, by products that the counter saw."""
        assert parts is not None
        assert installed.hot is not None
        swaps = installed.before
        figures: dict[str, float] = {"modules": float(len(swaps.swaps)), "left_stock": float(len(swaps.left))}
        errors, calls = [], installed.hot()
        for width in WIDTHS:
            packed = _probe(parts, width)
            moved, calls = installed.hot() - calls, installed.hot()
            swaps.back()
            try:
                stock = _probe(parts, width)
            finally:
                swaps.put()
            if installed.hot() != calls:
                return Proof(False, "A stock module reached the native library.", figures)
            if moved < len(swaps.swaps):
                return Proof(False, f"{len(swaps.swaps)} modules made {moved} native products in a forward.", figures)
            errors += [_relative_error(ours, theirs) for ours, theirs in zip(packed, stock, strict=True)]
        figures["max_relative_error"] = worst = max(errors, key=lambda error: (error != error, error))
        if not worst <= TOLERANCE:
            return Proof(False, f"Logits differ from the stock modules' by {worst:.1e} of them.", figures)
        return Proof(True, f"{len(swaps.swaps)} modules agree with the stock ones to {worst:.1e}.", figures)


def _models(parts: EngineParts) -> list[Any]:
    """What `modules.pack` takes: the trunk's linear modules and the head's, with the arrays they are packed from."""
    import mlx.nn as nn

    from mtrun.kernels.native.library import NativeError
    from mtrun.kernels.native.mlx_primitive.modules import parameters, slots

    def arrays(owner: Any, module: nn.Module) -> dict[str, Any]:
        """As the pack stores them where the owner can tell, else as they were loaded."""
        return {**parameters(module), **(owner.stored() if hasattr(owner, "stored") else {})}

    trunk, head = parts.trunk, parts.head
    model = getattr(trunk, "model", None)
    if not isinstance(model, nn.Module):
        raise NativeError(f"a {type(trunk).__name__} holds no MLX modules")
    models = [(slots(model, tied="lm_head" not in model), arrays(trunk, model))]
    if isinstance(head, nn.Module):
        models.append((slots(head, tied=False), arrays(head, head)))
    return models


def _probe(parts: EngineParts, width: int) -> list[Any]:
    """One forward of `width` random ids and one of the head: logits [width, V], hidden and states [1, width, H]."""
    import mlx.core as mx
    import numpy as np

    rng = np.random.default_rng(width)
    ids = mx.array(rng.integers(0, parts.trunk.vocab_size, (1, width)), dtype=mx.int32)
    out = parts.trunk.forward(ids, parts.cache_factory(), "all")
    made = [out.logits, out.hidden]
    if parts.head is not None:
        made.append(parts.head.forward(out.hidden, parts.trunk.embed(ids), parts.head.new_caches(), 0))
    mx.eval(made)
    return made


def _relative_error(ours: Any, theirs: Any) -> float:
    """The largest difference in parts of the largest stock value; NaN where either is not a number."""
    import mlx.core as mx

    return float(mx.max(mx.abs(ours - theirs)) / mx.max(mx.abs(theirs)))


LANE = CpuQmm()
