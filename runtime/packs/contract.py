"""What the decode loop asks of a model family: a trunk, a head, and caches that say how they roll back.

Hidden width H is opaque to the loop. Batch is 1 everywhere. Arrays are of the trunk's own module `xp`: MLX arrays, lazy
until the loop synchronises, or numpy arrays of a trunk that computes on the host. A head answers in its trunk's kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from mtrun.kernels.arrays import Array

Caches = list[Any]  # one a layer: mlx-lm's, or the trunk's own with `trims_exactly`, `offset` and `trim(n) -> dropped`


@dataclass(frozen=True)
class TrunkOut:
    """One forward of the trunk over L tokens."""

    hidden: Any  # [1, L, H] the state that the family's head is fed (llama: after the final norm)
    logits: Any  # [L or 1, V] rows asked for


class Trunk(Protocol):
    """The verified model."""

    hidden_size: int
    vocab_size: int
    context_limit: int  # positions the model was made for
    xp: Any  # the module of its arrays: mlx.core, or numpy

    def new_caches(self) -> Caches: ...

    def embed(self, ids: Any) -> Any:
        """ids [1, L] int32 -> [1, L, H] input embeddings, shared with the head."""
        ...

    def forward(self, ids: Any, caches: Caches, logits: Literal["all", "last", "none"]) -> TrunkOut: ...

    def project(self, hidden: Any) -> Any:
        """hidden [..., H] -> logits [..., V] by the trunk's own lm_head."""
        ...

    def projection_rows(self, ids: Any) -> Any:
        """The lm_head's rows of ids [K] as a dense [K, H] array: what a trimmed draft vocabulary multiplies by."""
        ...


class Head(Protocol):
    """The MTP head: pairs (hidden of position i, token i + 1) in, a state that predicts token i + 2 out."""

    max_depth: int

    def new_caches(self) -> Caches: ...

    def forward(self, hidden: Any, embedded: Any, caches: Caches, depth: int) -> Any:
        """hidden [1, L, H], embedded next tokens [1, L, H] -> [1, L, H]: projected to draft logits, and fed back."""
        ...


@dataclass(frozen=True)
class Loaded:
    """A pack's model on the calling thread, evaluated."""

    trunk: Trunk
    head: Head | None  # None: the pack has no usable head
    draft_ids: Array | None  # [K] int32 ascending, the ranked draft vocabulary; None = not shipped
