"""Figures of a head on held-out features, teacher-forced: what decoding can be expected to make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtrun.runtime.forge import features
from mtrun.runtime.forge.train import Trainer

DEFINITIONS = {
    "overlap": "by depth, mean over held-out positions of sum min(target, draft): the exact law's acceptance of a "
    "draft from that row, given that it is reached; the target is the trunk's row after top-p and top-k",
    "tokens_per_cycle": "1 + o1 + o1*o2 + ...: what the overlaps imply if depths were independent; a measurement on "
    "served text replaces it",
    "coverage": "share of the trunk's mass on held-out positions that lies in the draft vocabulary",
}


@dataclass(frozen=True)
class Figures:
    """Held-out figures of one head."""

    overlap: tuple[float, ...]  # by depth, in [0, 1]
    tokens_per_cycle: float
    coverage: float
    positions: int  # response tokens of the shards read
    batches: int | None  # limit that was set, None = every batch

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "overlap": list(self.overlap)}

    def text(self) -> str:
        """For people: one figure a line."""
        rows = [f"overlap at depth {depth + 1}   {value:.4f}" for depth, value in enumerate(self.overlap)]
        rows.append(f"tokens/cycle, implied {self.tokens_per_cycle:.3f}")
        rows.append(f"draft vocabulary covers {self.coverage:.4f} of the trunk's mass")
        rows.append(f"response tokens in the shards {self.positions:,}")
        return "\n".join(rows)


def implied_tokens_per_cycle(overlap: Sequence[float]) -> float:
    """Expected tokens a cycle of the exact law where depth d is kept with probability overlap[d - 1] if reached."""
    return 1.0 + float(np.cumprod(overlap).sum())


def measure(trainer: Trainer, paths: list[Path], depth: int, batches: int | None = None) -> Figures:
    """Figures over the first `batches` batches of the shards (coverage and positions: over all of them)."""
    overlap = trainer.overlaps(paths, 2**31 if batches is None else batches, depth)
    slots = trainer.vocabulary.slots
    mass = features.vocabulary_mass(paths, len(slots))
    return Figures(
        overlap=tuple(overlap),
        tokens_per_cycle=implied_tokens_per_cycle(overlap),
        coverage=float(mass[slots >= 0].sum() / max(mass.sum(), 1e-30)),
        positions=features.count(paths).response_tokens,
        batches=batches,
    )
