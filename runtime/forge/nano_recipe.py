"""The recipe of `nano`: shape, optimizer, schedule and curriculum. Everything that decides a run goes into the card."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mtrun.runtime.forge.tasks import catalogue
from mtrun.runtime.forge.tasks.contract import Task


@dataclass(frozen=True)
class Shape:
    """The trunk: a llama with tied embeddings."""

    hidden: int = 192
    layers: int = 4
    heads: int = 4
    middle: int = 512  # of the feed-forward
    vocab: int = 1024  # most tokens that the tokenizer may learn
    context: int = 512

    def config(self, vocab_size: int, eos_id: int) -> dict[str, Any]:
        """config.json of the trunk, for a tokenizer of `vocab_size` ids."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "intermediate_size": self.middle,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "head_dim": self.hidden // self.heads,
            "rms_norm_eps": 1e-5,
            "vocab_size": vocab_size,
            "max_position_embeddings": self.context,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "eos_token_id": eos_id,
        }


@dataclass(frozen=True)
class NanoConfig:
    """The trunk's training. Data are a pure function of (seed, step); the clock decides the end alone."""

    shape: Shape = Shape()
    steps: int = 5860
    minutes: float | None = None  # end earlier, by time spent in steps; the schedule follows whichever is further
    batch: int = 32  # tasks a step
    learning_rate: float = 3e-3  # peak of AdamW
    weight_decay: float = 0.01
    warmup: int = 100  # steps
    hold: int = 500  # steps after which the rate falls as 1 / sqrt(step): a constant one stays noisy on digits
    decay_from: float = 0.7  # share of the run after which the rate falls further, to 2 % of that
    digit_weight: float = 2.0  # of a digit in the loss: wording is free, digits are not
    clip: float = 1.0
    streams: int = 2  # the step's gradient is computed on so many cores; never changes the data
    speed: float = 1.0  # curriculum stages are divided by this
    checkpoint_every: int = 100
    report_every: int = 20
    measure_every: int = 500
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(kept: Mapping[str, Any]) -> NanoConfig:
        """From what `to_json` gave."""
        return NanoConfig(**{**kept, "shape": Shape(**kept["shape"])})


LENGTH = ("minutes", "steps", "streams", "checkpoint_every", "report_every", "measure_every")  # may change on resume


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum: from `step` on, families by weight and the share of each level."""

    step: int
    mix: Mapping[str, tuple[float, tuple[float, ...]]]  # family -> (weight, weight by level)


STAGES = (
    Stage(0, {"copying": (7, (2, 1)), "addition": (1, (1,)), "lists": (1, (1,)), "functions": (1, (1,))}),
    Stage(600, {
        "copying": (3, (1, 1, 1)), "addition": (2, (1, 1, 1)), "subtraction": (2, (1, 1, 1)),
        "lists": (2, (1, 1)), "word_problems": (1.5, (1,)), "functions": (1.5, (1, 1)),
    }),
    Stage(1200, {
        "copying": (1, (1, 1, 1)), "addition": (2.2, (0.5, 1, 2, 2, 1)), "subtraction": (2.4, (0.5, 1, 2, 2, 1)),
        "lists": (2.5, (1, 2, 1)), "word_problems": (2, (1, 1, 1)), "functions": (1.5, (1, 2)),
    }),
    Stage(3000, {
        "copying": (0.3, (1, 1, 1)), "addition": (1.7, (0.3, 1, 1.5, 2, 2)), "subtraction": (1.8, (0.3, 1, 1.5, 2, 2)),
        "lists": (2.8, (1, 2, 2)), "word_problems": (3, (0.5, 1.5, 2)), "functions": (1.3, (1, 2)),
    }),
)  # fmt: skip


def stage_at(step: int, speed: float = 1.0) -> Stage:
    """The stage that holds at `step`."""
    return [stage for stage in STAGES if stage.step <= step * speed][-1]


def tasks_at(config: NanoConfig, step: int) -> list[Task]:
    """The `batch` training tasks of a step."""
    rng = random.Random(f"nano {config.seed} {step}")
    mix = stage_at(step, config.speed).mix
    names = rng.choices(list(mix), [weight for weight, _ in mix.values()], k=config.batch)
    levels = [rng.choices(range(len(mix[name][1])), mix[name][1])[0] for name in names]
    return [catalogue.draw(rng, name, level) for name, level in zip(names, levels, strict=True)]
