"""Training of nano's trunk from nothing: seeded, resumable, recorded.

A step's tasks are sorted by length into quarters, and the quarters are computed on two CPU streams of MLX, so that two
cores work where there are two. The sum of their gradients is taken in a fixed order.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from mlx_lm.models import llama

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.forge.nano_recipe import LENGTH, NanoConfig, tasks_at
from mtrun.runtime.forge.nano_tokenizer import END, encode_task
from mtrun.runtime.forge.objective import draft_loss

FILE = "trunk.safetensors"
_QUARTERS = ((0, 3), (1, 2))  # quarters by length: shortest and longest together, so both streams take as long


@dataclass
class Cursor:
    """Where a run stands."""

    step: int = 0
    seconds: float = 0.0  # spent in steps
    tokens: int = 0  # read, prompts included, padding not
    losses: list[float] = field(default_factory=list)  # weighted nats an answer token, one a step


@dataclass(frozen=True)
class Rows:
    """Tasks of like length, padded."""

    ids: mx.array  # [B, L] int32
    index: mx.array  # [N] int32 into the flattened [B * (L - 1)]: positions whose next token is the answer's
    targets: mx.array  # [N, 1] int32: those next tokens
    weights: mx.array  # [N, 1] float32: of each in the loss
    tokens: int  # without padding


class TrunkTrainer:
    """One run of one trunk in one folder."""

    def __init__(self, config: NanoConfig, tokenizer: Any) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.eos = tokenizer.token_to_id(END)
        mx.random.seed(config.seed)
        made = config.shape.config(tokenizer.get_vocab_size(), self.eos)
        self.model = llama.Model(llama.ModelArgs.from_dict(made))
        mx.eval(self.model.parameters())
        self.weight = np.ones(tokenizer.get_vocab_size(), dtype=np.float32)  # [V] of each token in the loss
        self.weight[[i for i in map(tokenizer.token_to_id, "0123456789") if i is not None]] = config.digit_weight
        self.cursor = Cursor()
        self.optimizer = optim.AdamW(
            learning_rate=config.learning_rate, betas=[0.9, 0.98], weight_decay=config.weight_decay
        )
        self.optimizer.init(self.model.trainable_parameters())
        self.streams = [mx.new_stream(mx.cpu) for _ in range(config.streams)]

    # -- schedule ---------------------------------------------------------------------------------------------------
    def progress(self) -> float:
        """Share of the run that is done, in [0, 1]."""
        share = self.cursor.step / self.config.steps
        if self.config.minutes is not None:
            share = max(share, self.cursor.seconds / (60 * self.config.minutes))
        return min(share, 1.0)

    def rate(self) -> float:
        """Share of the peak learning rate: warm-up, hold, 1 / sqrt(step), linear to 2 % of that.

        The run's length is read in the last part alone, so no earlier loss depends on it.
        """
        warm = min(1.0, (self.cursor.step + 1) / self.config.warmup)
        warm *= math.sqrt(min(1.0, self.config.hold / max(1, self.cursor.step)))
        left = (1 - self.progress()) / (1 - self.config.decay_from)
        return warm * max(0.02, min(1.0, left))

    # -- one step ---------------------------------------------------------------------------------------------------
    def rows(self, step: int) -> list[Rows]:
        """The step's tasks in four groups of like length, shortest first."""
        chats = [encode_task(self.tokenizer, task.prompt, task.answer) for task in tasks_at(self.config, step)]
        chats.sort(key=lambda chat: len(chat[0]))
        bounds = [len(chats) * quarter // 4 for quarter in range(5)]
        return [_pad(chats[low:high], self.eos, self.weight) for low, high in itertools.pairwise(bounds) if high > low]

    def step(self) -> float:
        """One optimizer step; returns the loss in nats an answer token."""
        started = time.monotonic()
        rows = self.rows(self.cursor.step)
        total = sum(float(one.weights.sum()) for one in rows)
        compute = nn.value_and_grad(self.model, lambda model, one: _loss(model, one) / total)
        order = [i for pair in _QUARTERS for i in pair if i < len(rows)]
        parts: dict[int, Any] = {}
        for place, i in enumerate(order):
            with mx.stream(self.streams[place * len(self.streams) // len(order)]):
                parts[i] = compute(self.model, rows[i])
        mx.eval(parts)
        loss = sum((parts[i][0] for i in sorted(parts)), mx.array(0.0))
        grads: Any = tree_map(lambda *values: sum(values[1:], values[0]), *(parts[i][1] for i in sorted(parts)))
        grads, _ = optim.clip_grad_norm(grads, self.config.clip)
        self.optimizer.learning_rate = self.config.learning_rate * self.rate()
        self.optimizer.update(self.model, grads)
        mx.eval(self.model.parameters(), self.optimizer.state, loss)
        value = float(loss)
        if not math.isfinite(value):
            raise ConfigurationError(f"the loss of step {self.cursor.step} is {value}: train with smaller rates.")
        self.cursor.step += 1
        self.cursor.tokens += sum(one.tokens for one in rows)
        self.cursor.losses.append(value)
        self.cursor.seconds += time.monotonic() - started
        return value

    # -- the folder -------------------------------------------------------------------------------------------------
    def save(self, folder: Path) -> None:
        """Writes the checkpoint, replaced whole. Raises ConfigurationError when it cannot be."""
        arrays = {f"model.{name}": value for name, value in _flat(self.model.parameters()).items()}
        arrays |= {f"optimizer.{name}": value for name, value in _flat(self.optimizer.state).items()}
        state = json.dumps({"config": self.config.to_json(), "cursor": vars(self.cursor)})
        temporary = folder / "trunk.tmp.safetensors"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            mx.save_safetensors(str(temporary), arrays, metadata={"state": state})
            os.replace(temporary, folder / FILE)
        except (OSError, RuntimeError) as error:
            raise ConfigurationError(f"{folder / FILE} cannot be written ({error}): free space.") from error

    def resume(self, folder: Path) -> bool:
        """Goes on from the folder's checkpoint if there is one. Raises ConfigurationError on another recipe."""
        if not (folder / FILE).is_file():
            return False
        try:
            loaded: Any = mx.load(str(folder / FILE), format="safetensors", return_metadata=True)
            arrays, state = loaded[0], json.loads(loaded[1]["state"])
            theirs, cursor = NanoConfig.of(state["config"]).to_json(), Cursor(**state["cursor"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{folder / FILE} is no checkpoint ({error}): train with --fresh.") from error
        ours = self.config.to_json()
        changed = [name for name in ours if name not in LENGTH and ours[name] != theirs[name]]
        if changed:
            raise ConfigurationError(
                f"{folder / FILE} was made with another {', '.join(changed)}: give the same, or --fresh."
            )
        self.cursor = cursor
        self.model.load_weights(list(_below(arrays, "model.").items()), strict=True)
        self.optimizer.state = tree_unflatten(list(_below(arrays, "optimizer.").items()))
        return True


def _loss(model: Any, rows: Rows) -> mx.array:
    """Summed weighted nats of the answers' tokens."""
    states = model.model(rows.ids[:, :-1])
    picked = states.reshape(-1, states.shape[-1])[rows.index]
    logits = model.model.embed_tokens.as_linear(picked)  # [N, V]
    return draft_loss(0.0)(logits, rows.targets, rows.weights).sum()


def _pad(chats: list[tuple[list[int], int]], pad: int, weight: np.ndarray) -> Rows:
    length = max(len(ids) for ids, _ in chats)
    table = np.full((len(chats), length), pad, dtype=np.int32)
    index, targets = [], []
    for row, (ids, asked) in enumerate(chats):
        table[row, : len(ids)] = ids
        index += [row * (length - 1) + place for place in range(asked - 1, len(ids) - 1)]
        targets += ids[asked:]
    tokens = sum(len(ids) for ids, _ in chats)
    wanted = np.array(targets, dtype=np.int32)[:, None]
    return Rows(mx.array(table), mx.array(index), mx.array(wanted), mx.array(weight[wanted]), tokens)


def _flat(tree: Any) -> dict[str, mx.array]:
    return dict(tree_flatten(tree))  # type: ignore[arg-type]


def _below(arrays: dict[str, mx.array], prefix: str) -> dict[str, mx.array]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
