"""Training of an MTP head on feature shards: seeded, resumable, recorded.

The trunk is frozen and never run here: hidden states and target rows come from the shards, embeddings and lm_head rows
from the pack. Depth 1 is trained first; the last part of the run trains whole chains (`TrainConfig.chain_from`).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.forge import checkpoint, features
from mtrun.runtime.forge.checkpoint import Checkpoint, Cursor
from mtrun.runtime.forge.hostmath import math_for
from mtrun.runtime.forge.objective import overlap
from mtrun.runtime.forge.recipe import LENGTH, TrainConfig
from mtrun.runtime.forge.rollout import chain
from mtrun.runtime.forge.targets import Aim, Plan
from mtrun.runtime.packs.head import MtpHead


@dataclass(frozen=True)
class Vocabulary:
    """The draft vocabulary: V' ids, their lm_head rows, and the way back from token id to slot."""

    ids: np.ndarray  # [V'] int32 ascending
    rows: mx.array  # [V', H] float32
    slots: np.ndarray  # [V] int32, -1 = not drafted

    @classmethod
    def build(cls, ids: np.ndarray, lm_head: mx.array) -> Vocabulary:
        """From the whole lm_head [V, H]."""
        return cls.of(ids, lm_head[mx.array(ids)], lm_head.shape[0])

    @classmethod
    def of(cls, ids: np.ndarray, rows: mx.array, vocab_size: int) -> Vocabulary:
        """From ids [V'] int32 ascending and their lm_head rows [V', H]."""
        slots = np.full(vocab_size, -1, dtype=np.int32)
        slots[ids] = np.arange(len(ids), dtype=np.int32)
        return cls(ids, rows, slots)


Measure = Callable[[mx.array, mx.array, mx.array], mx.array]  # states [N, H], slots [N, T], weights [N, T] -> [N]


class Trainer:
    """One run of one head in one folder."""

    def __init__(
        self, config: TrainConfig, head: MtpHead, embedding: mx.array, vocabulary: Vocabulary, threads: int = 1
    ) -> None:
        """`threads`: of what a step does besides products, where that runs on a CPU (`hostmath`)."""
        self.math = math_for(threads)
        self.config, self.head, self.embedding, self.vocabulary = config, head, embedding, vocabulary
        self.cursor = Cursor()
        self.optimizer = optim.AdamW(learning_rate=config.learning_rate, weight_decay=config.weight_decay)
        self.aim = Aim(vocabulary.slots, config.top_p, config.top_k)
        self.loss = self.math.loss(config.overlap_share, vocabulary.rows)
        self.optimizer.init(head.trainable_parameters())

    # -- schedule ---------------------------------------------------------------------------------------------------
    def progress(self) -> float:
        """Share of the run that is done, in [0, 1]."""
        share = self.cursor.step / self.config.steps
        if self.config.minutes is not None:
            share = max(share, self.cursor.seconds / (60 * self.config.minutes))
        return min(share, 1.0)

    def learning_rate(self) -> float:
        warm = min(1.0, (self.cursor.step + 1) / self.config.warmup)
        return self.config.learning_rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * self.progress())))

    def depth(self) -> int:
        return self.config.depth if self.progress() >= self.config.chain_from else 1

    # -- one step ---------------------------------------------------------------------------------------------------
    def score(self, head: MtpHead, chats: features.Chats, plan: Plan, measure: Measure) -> list[mx.array]:
        """The mean of `measure` over each depth's targets, depths without one left out."""
        hidden = mx.array(chats.hidden[:, :-1])
        embedded = self.embedding[mx.array(chats.ids[:, 1:])]
        states = chain(head, hidden, embedded, plan.starts, len(plan.targets), self.math)
        scores = []
        for state, target in zip(states, plan.targets, strict=True):
            if target is not None:
                picked = state.reshape(-1, state.shape[-1])[target.index]
                scores.append(mx.mean(measure(picked, target.slots, target.weights)))
        return scores

    def step(self, chats: features.Chats, rng: np.random.Generator) -> float | None:
        """One optimizer step; returns the depth-1 loss, None for a batch with nothing to score (no step)."""
        started = time.monotonic()
        plan = self.aim.plan(chats, self.depth(), self.config.chain_share, rng)
        if plan.targets[0] is None:  # deeper targets are a subset of the first depth's
            return None

        def loss(head: MtpHead) -> tuple[mx.array, mx.array]:
            scores = self.score(head, chats, plan, self.loss)  # a depth without targets ends the list
            weights = mx.array([self.config.depth_decay**d for d in range(len(scores))])
            return mx.sum(mx.stack(scores) * weights) / mx.sum(weights), scores[0]

        (_, first), grads = nn.value_and_grad(self.head, loss)(self.head)
        grads, _ = optim.clip_grad_norm(grads, self.config.clip)
        self.optimizer.learning_rate = self.learning_rate()
        self.optimizer.update(self.head, grads)
        mx.eval(self.head.parameters(), self.optimizer.state, first)
        self.cursor.step += 1
        self.cursor.seconds += time.monotonic() - started
        self.cursor.losses.append(float(first))
        return float(first)

    def overlaps(self, paths: list[Path], limit: int, depth: int) -> list[float]:
        """Mean overlap with the trunk's filtered row by depth, over the first `limit` batches of held-out shards."""
        rng = np.random.default_rng(0)
        rows = self.vocabulary.rows

        def measure(states: mx.array, slots: mx.array, target: mx.array) -> mx.array:
            return overlap(states @ rows.T, slots, target)

        sums, counts = np.zeros(depth), np.zeros(depth)
        every = (c for path in paths for c in features.batches(path, self.config.batch, self.config.top_k, rng))
        for chats in itertools.islice(every, limit):
            plan = self.aim.plan(chats, depth, 1.0, rng)
            scored = [(d, len(target.index)) for d, target in enumerate(plan.targets) if target is not None]
            values = self.score(self.head, chats, plan, measure) if scored else []
            for (d, count), value in zip(scored, values, strict=True):
                sums[d] += float(value) * count
                counts[d] += count
        return (sums / np.maximum(counts, 1)).tolist()

    # -- the run ----------------------------------------------------------------------------------------------------
    def run(self, paths: Callable[[], list[Path]], folder: Path) -> Iterator[tuple[int, float]]:
        """Yields (step, loss) until the schedule ends; between two steps the run can be saved and left.

        `paths` is asked anew each epoch, so shards may still be coming. Raises ConfigurationError for shards without a
        single target.
        """
        saved = self.cursor.step
        while self.progress() < 1.0:
            rng = np.random.default_rng((self.config.seed, self.cursor.epoch))
            shards = paths()
            order = rng.permutation(len(shards))
            before, whole = self.cursor.step, self.cursor.shard == self.cursor.batch == 0
            while self.cursor.shard < len(order):
                for loss in self._shard(shards[order[self.cursor.shard]]):
                    yield self.cursor.step - 1, loss
                    if self.cursor.step - saved >= self.config.checkpoint_every:
                        self.save(folder)
                        saved = self.cursor.step
                    if self.progress() >= 1.0:
                        self.save(folder)
                        return
                self.cursor.shard, self.cursor.batch, self.cursor.generator = self.cursor.shard + 1, 0, None
                self.save(folder)
                saved = self.cursor.step
            if whole and self.cursor.step == before:
                raise ConfigurationError("no chat of the features has a response token: there is nothing to train on.")
            self.cursor.epoch, self.cursor.shard = self.cursor.epoch + 1, 0

    def _shard(self, path: Path) -> Iterator[float]:
        """Losses of the shard's batches from the cursor's on; the cursor is right whenever a loss is handed out."""
        rng = np.random.default_rng((self.config.seed, self.cursor.epoch, self.cursor.shard))
        resumed = self.cursor.batch
        for number, chats in enumerate(features.batches(path, self.config.batch, self.config.top_k, rng)):
            if number < resumed:
                continue
            if number == resumed and self.cursor.generator is not None:
                rng.bit_generator.state = self.cursor.generator
            loss = self.step(chats, rng)
            self.cursor.batch, self.cursor.generator = number + 1, dict(rng.bit_generator.state)
            if loss is not None:
                yield loss

    def save(self, folder: Path) -> None:
        """Writes the checkpoint atomically: weights, optimizer state and cursor become visible together."""
        state = Checkpoint(
            head=dict(tree_flatten(self.head.parameters())),
            optimizer=dict(tree_flatten(self.optimizer.state)),
            draft_ids=mx.array(self.vocabulary.ids),
            config=self.config,
            cursor=self.cursor,
        )
        checkpoint.write(folder, state)

    def resume(self, folder: Path) -> bool:
        """Continues from the folder's checkpoint if there is one. Raises ConfigurationError on another recipe."""
        found = checkpoint.read(folder)
        if found is None:
            return False
        theirs = asdict(found.config)
        changed = [k for k, v in asdict(self.config).items() if k not in LENGTH and theirs[k] != v]
        if not np.array_equal(np.array(found.draft_ids), self.vocabulary.ids):
            changed.append("draft vocabulary")
        if changed:
            raise ConfigurationError(
                f"{folder / checkpoint.FILE} was made with another {', '.join(changed)}: give the same values, or "
                "another output folder."
            )
        self.cursor = found.cursor
        self.head.update(tree_unflatten(list(found.head.items())))
        self.optimizer.state = tree_unflatten(list(found.optimizer.items()))
        return True
