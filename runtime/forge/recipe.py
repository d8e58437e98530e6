"""The recipe of a training run: everything that decides its outcome besides the pack and the features."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainConfig:
    """The recipe. Everything here goes into the head's card."""

    steps: int = 1000
    minutes: float | None = None  # end by wall time instead; the schedule follows whichever is further
    batch: int = 16  # chats a step
    learning_rate: float = 3e-3
    warmup: int = 50  # steps
    weight_decay: float = 0.01
    clip: float = 1.0  # global gradient norm
    depth: int = 3
    chain_from: float = 0.6  # share of the run after which whole chains are trained
    chain_share: float = 0.5  # share of positions scored at depths >= 2
    depth_decay: float = 1.0  # a depth's loss weighs this much of the one before: it is reached that much less often
    top_p: float = 0.95  # the law the head will be judged under, at temperature 1
    top_k: int = 20
    overlap_share: float = 0.0  # of the loss that is 1 - overlap, the rest is cross-entropy
    start: str | None = None  # sha256 of the head that the run starts from, None = random weights
    checkpoint_every: int = 50  # steps, besides the checkpoint after each shard
    seed: int = 0


LENGTH = ("steps", "minutes")  # a run may be made longer when it is taken up again; nothing else may change
