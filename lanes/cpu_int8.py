"""Lane: native forwards round activations to 8 bits with a scale per 32 values, as llama.cpp does.

Half the arithmetic of a verify, for rows that differ visibly: about .03 in total variation on a 135M model. So nobody
gets it without asking.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mtrun.lanes.contract import Decision, EngineParts, Evidence, Exactness, Installed, Latch, Proof, Stage

LIMIT = 0.25  # mean total variation between rows with and without the lane that the proof tolerates
PROBE_TOKENS = 24


@dataclass(frozen=True)
class CpuInt8:
    """The lane: changes how `parts.trunk`, already native, meets its weights."""

    name: str = "cpu_int8"
    summary: str = "CPU: 8-bit activations in native forwards; cheaper verifies, rows change a little"
    exactness: Exactness = Exactness.LOSSY
    stage: Stage = Stage.ENGINE
    requires: tuple[str, ...] = ("cpu_layer",)
    excludes: tuple[str, ...] = ()
    auto: bool = False

    def supports(self, evidence: Evidence) -> Decision:
        if evidence.pack.quantized_bits is None:
            return Decision(False, "dense", "The pack's weights are dense, which activations meet as they are.")
        return Decision(True, "supported", f"Weights of {evidence.pack.quantized_bits} bits take 8-bit activations.")

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed:
        from mtrun.kernels.native.engine import Activation

        assert parts is not None
        trunk, latch = parts.trunk, Latch()
        before = trunk.engine.activation, trunk.hit

        def hit() -> None:
            latch.hit()
            before[1]()

        def undo() -> None:
            trunk.engine.set_activation(before[0])
            trunk.hit = before[1]

        trunk.engine.set_activation(Activation.INT8)
        trunk.hit = hit
        return Installed(undo, latch, trunk.forward, before=before[0])

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof:
        """How far rows of random tokens move from those of the activation that was there before."""
        assert parts is not None
        engine = parts.trunk.engine
        rounded = probe_rows(parts)
        if engine.activation is installed.before:
            return Proof(False, "Activations are rounded as they were before.")
        now = engine.activation
        engine.set_activation(installed.before)
        try:
            wide = probe_rows(parts)
        finally:
            engine.set_activation(now)
        return judged(rounded, wide)


def probe_rows(parts: EngineParts) -> Any:
    """Probabilities [R, V] after random tokens."""
    import numpy as np

    count = min(PROBE_TOKENS, parts.trunk.context_limit)
    ids = np.random.default_rng(0).integers(0, parts.trunk.vocab_size, (1, count)).astype(np.int32)
    logits = parts.trunk.forward(ids, parts.trunk.new_caches(), "all").logits.astype(np.float64)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def judged(rows: Any, wanted: Any) -> Proof:
    """A lossy lane's proof: rows moved, and by no more than LIMIT in mean total variation."""
    import numpy as np

    variation = float(np.mean(np.sum(np.maximum(rows - wanted, 0), axis=-1)))
    figures = {"mean_total_variation": variation}
    if variation == 0:
        return Proof(False, "Rows are the same bits as without the lane, so it does nothing.", figures)
    if not variation < LIMIT:
        return Proof(False, f"Rows move by {variation:.3f} in mean total variation, more than {LIMIT}.", figures)
    return Proof(True, f"Rows move by {variation:.1e} in mean total variation.", figures)


LANE = CpuInt8()
