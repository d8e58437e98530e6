"""From MLX arrays under mlx-lm's parameter names to the native library's weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from mtrun.kernels.native.engine import StoredMatrix
from mtrun.kernels.native.library import NativeError
from mtrun.kernels.native.llama import HeadWeights, LayerWeights, Rope, Sizes, TrunkWeights

Arrays = Mapping[str, mx.array]

_MODULES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def sizes_of(args: Any) -> Sizes:
    """The sizes in mlx-lm's llama ModelArgs."""
    return Sizes(
        hidden=args.hidden_size,
        feed_forward=args.intermediate_size,
        heads=args.num_attention_heads,
        kv_heads=args.num_key_value_heads or args.num_attention_heads,
        head_dim=args.head_dim or args.hidden_size // args.num_attention_heads,
        vocab=args.vocab_size,
        eps=args.rms_norm_eps,
        rope_traditional=bool(args.rope_traditional),
    )


def rope_table(rope: Any, head_dim: int, traditional: bool, positions: int) -> Rope:
    """Rotations of the model's own rope module: it turns (1, 0) into (cos, sin), scaled variants included.

    Raises NativeError when the module rotates only a part of the head.
    """
    half = head_dim // 2
    unit = np.zeros((1, 1, positions, head_dim), dtype=np.float32)
    unit[..., slice(0, None, 2) if traditional else slice(0, half)] = 1.0
    turned = np.array(rope(mx.array(unit)))[0, 0]  # [positions, head_dim]
    cosine, sine = (turned[:, 0::2], turned[:, 1::2]) if traditional else (turned[:, :half], turned[:, half:])
    if not np.allclose(cosine**2 + sine**2, 1.0, atol=1e-4):
        raise NativeError("the model's rope does not rotate the whole head")
    return Rope(np.ascontiguousarray(cosine), np.ascontiguousarray(sine))


def trunk_weights(arrays: Arrays, args: Any) -> TrunkWeights:
    """A llama trunk from its parameters, stored or dense. Raises NativeError for a layout the library cannot serve."""
    sizes = sizes_of(args)
    tied = bool(args.tie_word_embeddings)
    return TrunkWeights(
        embedding=matrix(arrays, "model.embed_tokens", sizes.hidden),
        layers=[_layer(arrays, f"model.layers.{i}.", sizes) for i in range(args.num_hidden_layers)],
        norm=vector(arrays, "model.norm.weight"),
        projection=None if tied else matrix(arrays, "lm_head", sizes.hidden),
    )


def head_weights(arrays: Arrays, args: Any, max_depth: int, draft_ids: mx.array | None) -> HeadWeights:
    """An MTP head from its parameters, likewise. Raises NativeError."""
    sizes = sizes_of(args)
    return HeadWeights(
        hidden_norm=vector(arrays, "hidden_norm.weight"),
        embed_norm=vector(arrays, "embed_norm.weight"),
        projection=matrix(arrays, "proj", 2 * sizes.hidden),
        layer=_layer(arrays, "layer.", sizes),
        norm=vector(arrays, "norm.weight"),
        max_depth=max_depth,
        draft_ids=None if draft_ids is None else np.array(draft_ids, dtype=np.int32),
    )


def _layer(arrays: Arrays, prefix: str, sizes: Sizes) -> LayerWeights:
    widths = {"output": sizes.heads * sizes.head_dim, "down": sizes.feed_forward}
    return LayerWeights(
        attention_norm=vector(arrays, f"{prefix}input_layernorm.weight"),
        mlp_norm=vector(arrays, f"{prefix}post_attention_layernorm.weight"),
        matrices={
            name: matrix(arrays, prefix + module, widths.get(name, sizes.hidden)) for name, module in _MODULES.items()
        },
    )


def vector(arrays: Arrays, name: str) -> np.ndarray:
    """A parameter as float32."""
    return np.array(arrays[name].astype(mx.float32))


def matrix(arrays: Arrays, module: str, inputs: int) -> StoredMatrix:
    """The matrix of a linear module with so many inputs. Bits and group follow from the shapes of a triple."""
    weight, scales = arrays[f"{module}.weight"], arrays.get(f"{module}.scales")
    if scales is None:
        return StoredMatrix(_host(weight), bfloat=weight.dtype == mx.bfloat16)
    bits, group = weight.shape[-1] * 32 // inputs, inputs // scales.shape[-1]
    if bits not in (4, 8) or inputs % 32:
        raise NativeError(f"{module} is stored with {bits} bits in groups of {group}; 4 and 8 bits are served")
    biases = arrays[f"{module}.biases"]
    return StoredMatrix(_host(weight), _host(scales), _host(biases), bits, group, scales.dtype == mx.bfloat16)


def _host(array: mx.array) -> np.ndarray:
    """The array's values without a copy; bfloat16 as the uint16 of its bits."""
    return np.asarray(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
