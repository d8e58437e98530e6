"""Which places of a batch a head is scored at, and against which rows of the trunk."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mtrun.runtime.forge.features import Chats
from mtrun.runtime.forge.objective import filtered_targets


@dataclass(frozen=True)
class Targets:
    """N scored places of one depth."""

    index: mx.array  # [N] int32 into the flattened starts: [B * (L - 1)] at depth 1, [B * S] at depths 2 and more
    slots: mx.array  # [N, T] int32
    weights: mx.array  # [N, T] float32, 0 for tokens outside the draft vocabulary


@dataclass(frozen=True)
class Plan:
    """What one batch is scored on."""

    starts: mx.array  # [B, S] int32: where chains go past depth 1; chats with fewer repeat place 0, unscored
    targets: list[Targets | None]  # by depth, None where a depth has none


@dataclass(frozen=True)
class Aim:
    """The trunk's rows as a head is scored against them: filtered as sampled, within the draft vocabulary."""

    slots: np.ndarray  # [V] int32 slot of each token in the draft vocabulary, -1 = not drafted
    top_p: float
    top_k: int

    def plan(self, chats: Chats, depth: int, share: float, rng: np.random.Generator) -> Plan:
        """Every place at depth 1; at depths 2..`depth` chains from a random `share` of the places that have a target
        at depth 2."""
        batch, length = chats.ids.shape
        everywhere = np.broadcast_to(np.arange(length - 1, dtype=np.int32), (batch, length - 1))
        starts = some_starts(chats, share, rng) if depth > 1 else everywhere[:, :1]
        targets = [self.targets(chats, starts if step else everywhere, step) for step in range(depth)]
        return Plan(mx.array(np.maximum(starts, 0)), targets)

    def targets(self, chats: Chats, starts: np.ndarray, step: int) -> Targets | None:
        """For the states of depth step + 1 at starts [B, S] int32 (-1 = none): the trunk's row `step + 1` places
        further on, where it is wanted. None where it never is."""
        b, s = np.nonzero((starts >= 0) & (starts + step + 1 < chats.ids.shape[1]))
        row = starts[b, s] + step + 1
        wanted = chats.wanted[b, row]
        b, s, row = b[wanted], s[wanted], row[wanted]
        if not len(row):
            return None
        weights = filtered_targets(chats.top_logp[b, row], self.top_p, self.top_k)
        slots = self.slots[chats.top_ids[b, row]]
        weights = np.where(slots >= 0, weights, 0.0).astype(np.float32)
        index = (b * starts.shape[1] + s).astype(np.int32)
        return Targets(mx.array(index), mx.array(np.maximum(slots, 0)), mx.array(weights))


def some_starts(chats: Chats, share: float, rng: np.random.Generator) -> np.ndarray:
    """[B, S] int32: in each chat a random `share` of the places with a depth-2 target, -1 where it has fewer than S."""
    wanted = [np.flatnonzero(row[2:]) for row in chats.wanted]
    chosen = [places[rng.random(len(places)) < share] if share < 1.0 else places for places in wanted]
    starts = np.full((len(chosen), max(1, *map(len, chosen))), -1, dtype=np.int32)
    for row, places in zip(starts, chosen, strict=True):
        row[: len(places)] = places
    return starts
