"""The llama family: mlx-lm's own model behind `contract.Trunk`. SmolLM2 is one of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache

from mtrun.runtime.errors import PackError
from mtrun.runtime.memory import give_back
from mtrun.runtime.packs.contract import Caches, Loaded, TrunkOut
from mtrun.runtime.packs.fields import one_line
from mtrun.runtime.packs.head import MtpHead
from mtrun.runtime.packs.reader import DRAFT_IDS, PackDescription
from mtrun.runtime.packs.weights import load_head_weights, load_trunk_weights

DEFAULT_CONTEXT = 2048


def model_args(config: Mapping[str, Any]) -> llama.ModelArgs:
    """mlx-lm's arguments of an HF-style config.json. Raises PackError when a needed number is missing."""
    with _explained():
        return llama.ModelArgs.from_dict(dict(config))


@contextmanager
def _explained() -> Iterator[None]:
    """Whatever mlx-lm makes of figures that no model can have is the configuration's fault."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, RuntimeError) as error:
        words = one_line(error)
        raise PackError(
            f"config.json describes no llama model ({words}): correct it or fetch the pack again."
        ) from error


def expected_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Parameter name -> shape of a module whose weights are dense: what strict loading compares against."""
    return {
        name: tuple(value.shape) for name, value in cast(list[tuple[str, mx.array]], tree_flatten(module.parameters()))
    }


Stored = Callable[[], dict[str, mx.array]]  # parameters as the pack's files hold them: dense, or affine triples


def parameters(module: nn.Module) -> dict[str, mx.array]:
    """A module's own parameters by name."""
    return dict(cast(list[tuple[str, mx.array]], tree_flatten(module.parameters())))


class LlamaTrunk:
    """Implements `contract.Trunk` on dense float32 (or as-loaded) weights."""

    xp: Any = mx

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.args = model_args(config)
        with _explained():
            self.model = llama.Model(self.args)
        self.hidden_size = self.args.hidden_size
        self.vocab_size = self.args.vocab_size
        self.context_limit = self.args.max_position_embeddings or DEFAULT_CONTEXT
        self.stored: Stored = lambda: parameters(self.model)
        self.reload: Stored | None = None  # reads the dense weights again; None = they cannot be let go
        self._released = False

    def load(self, weights: Mapping[str, mx.array]) -> None:
        """Takes exactly the model's own parameters; evaluation stays with the caller's thread."""
        # Strict compares shapes with what is there, which is nothing after a release: the reader has compared them.
        self.model.load_weights(list(weights.items()), strict=not self._released)
        self.model.eval()
        mx.eval(self.model.parameters())

    def release(self) -> None:
        """Lets go of the weights, where they can be read again: another path serves. The next use brings them back."""
        if self.reload is None or self._released:
            return
        empty = {name: mx.zeros((0,)) for name in parameters(self.model)}
        self.model.load_weights(list(empty.items()), strict=False)
        self._released = True
        mx.clear_cache()
        give_back()

    def _ready(self) -> None:
        if self._released:
            assert self.reload is not None
            self.load(self.reload())
            self._released = False

    def new_caches(self) -> Caches:
        return make_prompt_cache(self.model)

    def embed(self, ids: mx.array) -> mx.array:
        self._ready()
        return self.model.model.embed_tokens(ids)

    def forward(self, ids: mx.array, caches: Caches, logits: Literal["all", "last", "none"]) -> TrunkOut:
        self._ready()
        hidden = self.model.model(ids, cache=caches)
        if logits == "none":
            return TrunkOut(hidden, None)
        rows = hidden[0] if logits == "all" else hidden[0, -1:]
        return TrunkOut(hidden, self.project(rows))

    def project(self, hidden: mx.array) -> mx.array:
        self._ready()
        if self.args.tie_word_embeddings:
            return self.model.model.embed_tokens.as_linear(hidden)
        return self.model.lm_head(hidden)

    def projection_rows(self, ids: mx.array) -> mx.array:
        self._ready()
        table = self.model.model.embed_tokens if self.args.tie_word_embeddings else self.model.lm_head
        return table.weight[ids]


def build_head(config: Mapping[str, Any]) -> MtpHead:
    """An MTP head of the trunk's own layer shape; full attention whatever the trunk's layer types."""
    with _explained():
        return MtpHead(model_args(config))


def load(description: PackDescription) -> Loaded:
    """Trunk, head and draft vocabulary of a llama pack as dense float32, on the calling thread. Raises PackError."""
    trunk = LlamaTrunk(description.config)
    shapes, tied = expected_shapes(trunk.model), trunk.args.tie_word_embeddings

    def leftover(name: str) -> bool:
        return name.endswith("rotary_emb.inv_freq") or (tied and name.startswith("lm_head."))

    trunk.reload = lambda: load_trunk_weights(description, shapes, ignore=leftover)
    trunk.load(trunk.reload())
    trunk.stored = lambda: load_trunk_weights(description, shapes, dequantize=False, ignore=leftover)
    if not description.head.ok:
        return Loaded(trunk, None, None)
    head = build_head(description.config)
    head_shapes = expected_shapes(head)
    weights = load_head_weights(description, head_shapes)
    ids = weights.pop(DRAFT_IDS, None)
    head.load_weights(list(weights.items()), strict=True)
    mx.eval(head.parameters())
    head.stored = lambda: load_head_weights(description, head_shapes, dequantize=False)
    if description.wiring is not None:
        head.max_depth = description.wiring.max_depth
    return Loaded(trunk, head, None if ids is None else mx.sort(ids))
