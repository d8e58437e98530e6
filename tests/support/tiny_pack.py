"""A random llama pack of a few hundred kilobytes: the files and names of a real one, written in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = 2
CORPUS = (
    "The cat sat on the mat. The user asks and the assistant answers in the same language.\n"
    "system user assistant Hello, how are you today? I am fine, thank you. One two three four five.\n"
    "def add(a, b):\n    return a + b\n"
)


def write_tiny_pack(
    folder: Path,
    *,
    seed: int = 0,
    vocab: int = 320,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head: bool = True,
    draft_vocab: int | None = None,
    quantized: bool = False,
    sliding_window: int | None = None,
    context: int = 512,
    max_depth: int = 8,
    tied: bool = True,
    shards: int = 1,
    manifest: bool = True,
    name: str = "tiny",
    scale: float = 1.0,
) -> Path:
    """Write a pack into `folder` (made if absent) and return it. Equal arguments give equal weights.

    `vocab` below 259 gets a tokenizer of three specials and single ASCII letters. `quantized` stores 4-bit trunk
    triples of group 32 and an 8-bit head of group 64 (hidden must divide by 64). `sliding_window` makes every second
    layer a sliding one.
    `scale` widens the logits: the larger, the more peaked the rows.
    """
    import mlx.core as mx

    folder.mkdir(parents=True, exist_ok=True)
    key = _Keys(seed)
    config = _config(vocab, hidden, layers, heads, kv_heads, context, tied, sliding_window, quantized)
    trunk = _trunk(key, config, scale)
    if quantized:
        trunk = _quantize(trunk, group=32, bits=4)
    _save_trunk(folder, trunk, shards)
    if head:
        tensors = _head(key, config)
        if quantized:
            tensors = _quantize(tensors, group=64, bits=8)
        if draft_vocab is not None:
            ranked = list(range(min(draft_vocab, vocab)))
            tensors["draft_ids"] = mx.array(ranked, dtype=mx.int32)
        mx.save_safetensors(str(folder / "mtp.safetensors"), tensors)
    _write_texts(folder, config, vocab)
    if manifest:
        _write_manifest(folder, name, max_depth if head else None, draft_vocab)
    return folder


class _Keys:
    """Normal weights from one seed: independent of global random state and of the number of draws before."""

    def __init__(self, seed: int) -> None:
        import numpy as np

        self.generator = np.random.default_rng(seed)

    def normal(self, *shape: int, std: float) -> Any:
        import mlx.core as mx
        import numpy as np

        return mx.array(self.generator.normal(0.0, std, shape).astype(np.float32))


def _config(
    vocab: int,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    context: int,
    tied: bool,
    window: int | None,
    q: bool,
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": EOS,
    }
    if window is not None:
        config["sliding_window"] = window
        config["layer_types"] = ["sliding_attention" if i % 2 else "full_attention" for i in range(layers)]
    if q:
        config["quantization"] = {"group_size": 32, "bits": 4}
    return config


def _block(key: _Keys, prefix: str, config: dict[str, Any]) -> dict[str, Any]:
    import mlx.core as mx

    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    std = hidden**-0.5
    return {
        f"{prefix}.self_attn.q_proj.weight": key.normal(hidden, hidden, std=std),
        f"{prefix}.self_attn.k_proj.weight": key.normal(kv, hidden, std=std),
        f"{prefix}.self_attn.v_proj.weight": key.normal(kv, hidden, std=std),
        f"{prefix}.self_attn.o_proj.weight": key.normal(hidden, hidden, std=std),
        f"{prefix}.mlp.gate_proj.weight": key.normal(ffn, hidden, std=std),
        f"{prefix}.mlp.up_proj.weight": key.normal(ffn, hidden, std=std),
        f"{prefix}.mlp.down_proj.weight": key.normal(hidden, ffn, std=ffn**-0.5),
        f"{prefix}.input_layernorm.weight": mx.ones((hidden,)) + key.normal(hidden, std=0.1),
        f"{prefix}.post_attention_layernorm.weight": mx.ones((hidden,)) + key.normal(hidden, std=0.1),
    }


def _trunk(key: _Keys, config: dict[str, Any], scale: float) -> dict[str, Any]:
    import mlx.core as mx

    hidden, vocab = config["hidden_size"], config["vocab_size"]
    trunk = {"model.embed_tokens.weight": key.normal(vocab, hidden, std=scale * 2 * hidden**-0.5)}
    for layer in range(config["num_hidden_layers"]):
        trunk |= _block(key, f"model.layers.{layer}", config)
    trunk["model.norm.weight"] = mx.ones((hidden,)) + key.normal(hidden, std=0.1)
    if not config["tie_word_embeddings"]:
        trunk["lm_head.weight"] = key.normal(vocab, hidden, std=scale * 2 * hidden**-0.5)
    return trunk


def _head(key: _Keys, config: dict[str, Any]) -> dict[str, Any]:
    import mlx.core as mx

    hidden = config["hidden_size"]
    return {
        "hidden_norm.weight": mx.ones((hidden,)) + key.normal(hidden, std=0.1),
        "embed_norm.weight": mx.ones((hidden,)) + key.normal(hidden, std=0.1),
        "proj.weight": key.normal(hidden, 2 * hidden, std=(2 * hidden) ** -0.5),
        **_block(key, "layer", config),
        "norm.weight": mx.ones((hidden,)) + key.normal(hidden, std=0.1),
    }


def _quantize(tensors: dict[str, Any], group: int, bits: int) -> dict[str, Any]:
    import mlx.core as mx

    out: dict[str, Any] = {}
    for name, array in tensors.items():
        if array.ndim != 2:
            out[name] = array
            continue
        module = name.removesuffix(".weight")
        out[name], out[f"{module}.scales"], out[f"{module}.biases"] = mx.quantize(array, group_size=group, bits=bits)
    return out


def _save_trunk(folder: Path, trunk: dict[str, Any], shards: int) -> None:
    import mlx.core as mx

    if shards == 1:
        mx.save_safetensors(str(folder / "model.safetensors"), trunk)
        return
    names = list(trunk)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: trunk[name] for name in names[shard::shards]}
        mx.save_safetensors(str(folder / file), part)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _write_texts(folder: Path, config: dict[str, Any], vocab: int) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    generation = {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "eos_token_id": EOS, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIALS[EOS], "bos_token": SPECIALS[1]}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    tiny_tokenizer(vocab).save(str(folder / "tokenizer.json"))


def tiny_tokenizer(vocab: int = 320) -> Any:
    """A byte-level BPE tokenizer of at most `vocab` ids, the three specials first; byte-complete from 259 ids on."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    specials = [AddedToken(text, special=True, normalized=False) for text in SPECIALS]
    if vocab < len(SPECIALS) + 256:
        letters = sorted(
            pre_tokenizers.ByteLevel.alphabet(), key=lambda one: (one not in "Ġetaoinshrdlu", not one.isalpha(), one)
        )
        ids = {text: i for i, text in enumerate([*SPECIALS, *letters[: vocab - len(SPECIALS)]])}
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
        tokenizer.add_special_tokens(specials)
    else:
        tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    if vocab >= len(SPECIALS) + 256:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(
            vocab_size=vocab, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator([CORPUS], trainer)
    return tokenizer


def _write_manifest(folder: Path, name: str, max_depth: int | None, draft_vocab: int | None) -> None:
    from mtrun.runtime.packs.identity import file_entries, trunk_identity
    from mtrun.runtime.packs.manifest import HeadEntry, HeadWiring, Manifest, SamplerDefaults, write_manifest
    from mtrun.runtime.packs.tensors import read_trunk_tensors

    trunk = trunk_identity(read_trunk_tensors(folder).values())
    entry = None if max_depth is None else HeadEntry(HeadWiring(max_depth=max_depth), trunk, draft_vocab)
    manifest = Manifest(
        name=name,
        family="llama",
        trunk_identity=trunk,
        licence="Apache-2.0",
        files=file_entries(folder),
        head=entry,
        sampler=SamplerDefaults(temperature=1.0, top_p=0.95, top_k=20),
        provenance={"source": "random weights"},
    )
    write_manifest(folder, manifest)
