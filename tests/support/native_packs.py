"""Tiny models and matrices for the native library, with the MLX modules and integers that they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from mtrun.kernels.native.convert import head_weights, rope_table, sizes_of, trunk_weights
from mtrun.kernels.native.engine import Activation, StoredMatrix
from mtrun.kernels.native.llama import Choices, NativeModel, build
from mtrun.runtime.packs.head import MtpHead
from mtrun.runtime.packs.llama import LlamaTrunk, build_head

FLOATS = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


@dataclass(frozen=True)
class Triple:
    """A quantised matrix: as stored, and what it stands for."""

    stored: StoredMatrix
    mlx: tuple[mx.array, mx.array, mx.array]
    integers: np.ndarray  # [N, K] float64
    scales: np.ndarray  # [N, K] float64, a group's scale at each of its inputs
    biases: np.ndarray  # [N, K] float64

    @property
    def weights(self) -> np.ndarray:
        """[N, K] float64."""
        return self.scales * self.integers + self.biases


def random_triple(outputs: int, inputs: int, bits: int, group: int, floats: str = "float32", seed: int = 0) -> Triple:
    """`mx.quantize` of normal weights of the dtype `floats`."""
    dense = np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32)
    return triple(*mx.quantize(mx.array(dense).astype(FLOATS[floats]), group_size=group, bits=bits), bits, group)


def centred_triple(outputs: int, inputs: int, seed: int = 0) -> Triple:
    """8 bits in groups of 32 with bias = -128 scale, scales of both signs: the form that a Q8_0 file converts to."""
    rng = np.random.default_rng(seed)
    integers = rng.integers(0, 256, (outputs, inputs), dtype=np.uint8)
    scales = mx.array(rng.standard_normal((outputs, inputs // 32)) / 100).astype(mx.float16)
    return triple(mx.array(integers).view(mx.uint32), scales, -128 * scales, 8, 32)


def triple(weight: mx.array, scales: mx.array, biases: mx.array, bits: int, group: int) -> Triple:
    words = np.array(weight)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    integers = (words[:, :, None] >> shifts & np.uint32(2**bits - 1)).reshape(len(words), -1)
    wide = [np.repeat(np.array(each.astype(mx.float32), dtype=np.float64), group, axis=1) for each in (scales, biases)]
    stored = StoredMatrix(words, host(scales), host(biases), bits, group, scales.dtype == mx.bfloat16)
    return Triple(stored, (weight, scales, biases), integers.astype(np.float64), *wide)


def random_dense(outputs: int, inputs: int, floats: str, seed: int = 0) -> tuple[StoredMatrix, np.ndarray]:
    """Normal weights of the dtype `floats` as stored, and as [N, K] float32."""
    dense = np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32)
    weight = mx.array(dense).astype(FLOATS[floats])
    return StoredMatrix(host(weight), bfloat=floats == "bfloat16"), np.array(weight.astype(mx.float32))


def host(array: mx.array) -> np.ndarray:
    """The stored bits; bfloat16 as uint16."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


@dataclass(frozen=True)
class TinyModel:
    """A random llama trunk and MTP head as MLX modules."""

    trunk: LlamaTrunk
    head: MtpHead

    def native(
        self,
        isa: str = "auto",
        threads: int = 1,
        activation: Activation = Activation.WIDE,
        draft_ids: Any = None,
    ) -> NativeModel:
        """The same model inside the library."""
        args, layers = self.trunk.args, self.trunk.model.model.layers
        sizes = sizes_of(args)
        rope = rope_table(
            layers[0].self_attn.rope, sizes.head_dim, sizes.rope_traditional, args.max_position_embeddings or 0
        )
        ids = None if draft_ids is None else mx.array(draft_ids, dtype=mx.int32)
        return build(
            sizes,
            rope,
            trunk_weights(_parameters(self.trunk.model), args),
            head_weights(_parameters(self.head), args, 8, ids),
            Choices(isa, threads, activation),
        )


def tiny_model(
    *,
    hidden: int = 32,
    feed_forward: int = 48,
    heads: int = 2,
    kv_heads: int = 1,
    head_dim: int = 16,
    layers: int = 2,
    vocab: int = 70,
    context: int = 64,
    tied: bool = True,
    traditional: bool = False,
    scaling: dict[str, Any] | None = None,
    bits: int | None = None,
    group: int = 32,
    seed: int = 0,
) -> TinyModel:
    """`bits` None = dense float32; else every matrix is quantised, whose inputs must divide into groups."""
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": feed_forward,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "rope_traditional": traditional,
        "rope_scaling": scaling,
        "tie_word_embeddings": tied,
    }
    rng = np.random.default_rng(seed)
    trunk, head = LlamaTrunk(config), build_head(config)
    for module in (trunk.model, head):
        values = [(name, _random(rng, value)) for name, value in _parameters(module).items()]
        module.update(tree_unflatten(values))
        if bits is not None:
            nn.quantize(module, group_size=group, bits=bits)
        mx.eval(module.parameters())
    return TinyModel(trunk, head)


def _parameters(module: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(module.parameters()))


def _random(rng: np.random.Generator, like: mx.array) -> mx.array:
    """Norms near 1, matrices of standard deviation 1.5 / sqrt(inputs): attention and logits with some contrast."""
    noise = rng.standard_normal(like.shape)
    values = 1 + 0.1 * noise if like.ndim == 1 else noise * 1.5 * like.shape[-1] ** -0.5
    return mx.array(values.astype(np.float32))
