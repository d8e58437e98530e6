"""A run's checkpoint: head, optimizer state, draft vocabulary, recipe and cursor in one file that is replaced whole."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.forge.recipe import TrainConfig

FILE = "checkpoint.safetensors"
_HEAD, _OPTIMIZER, _IDS = "head.", "optimizer.", "draft_ids"


@dataclass
class Cursor:
    """Where a run stands: enough to go on as if it had never stopped."""

    step: int = 0
    epoch: int = 0
    shard: int = 0  # next entry of the epoch's shard order
    seconds: float = 0.0  # spent in steps, not in evaluations
    losses: list[float] = field(default_factory=list)  # depth 1, one a step
    batch: int = 0  # batches of that shard already trained on
    generator: dict[str, Any] | None = None  # state of the shard's random generator after them; None = untouched


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file, arrays by parameter name."""

    head: dict[str, mx.array]
    optimizer: dict[str, mx.array]
    draft_ids: mx.array  # [V'] int32 ascending
    config: TrainConfig
    cursor: Cursor


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """The checkpoint of `folder`, made if absent; replaced atomically. Raises ConfigurationError when it cannot be."""
    arrays = {_HEAD + name: value for name, value in checkpoint.head.items()}
    arrays |= {_OPTIMIZER + name: value for name, value in checkpoint.optimizer.items()}
    arrays[_IDS] = checkpoint.draft_ids
    state = json.dumps({"config": asdict(checkpoint.config), "cursor": asdict(checkpoint.cursor)})
    temporary, path = folder / "checkpoint.tmp.safetensors", folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mx.save_safetensors(str(temporary), arrays, metadata={"state": state})
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        raise ConfigurationError(
            f"{path} cannot be written ({error}): free space, or choose another folder."
        ) from error
    return path


def read(folder: Path) -> Checkpoint | None:
    """The folder's checkpoint, None where there is none. Raises ConfigurationError for a file that is none of ours."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        loaded: Any = mx.load(str(path), format="safetensors", return_metadata=True)
        arrays, metadata = loaded
        state = json.loads(metadata["state"])
        return Checkpoint(
            head=_below(arrays, _HEAD),
            optimizer=_below(arrays, _OPTIMIZER),
            draft_ids=arrays[_IDS],
            config=TrainConfig(**state["config"]),
            cursor=Cursor(**state["cursor"]),
        )
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is no checkpoint that this mtrun can read ({error}): train with --fresh, or choose another folder."
        ) from error


def required(folder: Path) -> Checkpoint:
    """The folder's checkpoint. Raises ConfigurationError when there is none."""
    found = read(folder)
    if found is None:
        raise ConfigurationError(f"{folder} holds no {FILE}: run `mtrun forge train` with --out {folder} first.")
    return found


def _below(arrays: dict[str, mx.array], prefix: str) -> dict[str, mx.array]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
