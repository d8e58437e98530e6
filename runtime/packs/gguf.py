"""A llama GGUF file turned into a pack folder. Run as `python -m mtrun.runtime.packs.gguf SOURCE FOLDER`.

It runs in a process of its own because it needs MLX, and some lanes must act before MLX is first imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtrun.runtime.errors import MtrunError, PackError
from mtrun.runtime.packs.members import CHAT_TEMPLATE, CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS

if TYPE_CHECKING:
    import mlx.core as mx

_GROUP = 32  # GGUF's Q4_1 and Q8_0 both scale blocks of 32
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
_CONTROL = 3  # token_type of special tokens


def convert(source: Path, folder: Path) -> None:
    """Write config, weights, tokenizer, chat template and generation defaults into `folder`. Raises PackError.

    Weights keep their quantised blocks as MLX triples, bit for bit; only the rows of q and k change places.
    """
    import mlx.core as mx

    try:
        loaded: Any = mx.load(str(source), format="gguf", return_metadata=True)
    except (RuntimeError, ValueError, OSError) as error:
        raise PackError(f"MLX cannot read {source.name} ({error}): fetch the pack again.") from error
    tensors, metadata = loaded
    facts = _Facts(metadata)
    config = _config(facts, tensors)
    weights = {}
    for name, array in tensors.items():
        target = parameter_name(name)
        if target.split(".")[-2] in ("q_proj", "k_proj"):
            kind = "num_attention_heads" if "q_proj" in target else "num_key_value_heads"
            array = unpermute(array, config[kind])
        weights[target] = array
    config["quantization"] = _quantization(weights, config)
    try:
        mx.save_safetensors(str(folder / WEIGHTS), weights, {"format": "mlx"})
    except RuntimeError as error:  # MLX's writer does not say why
        raise PackError(
            f"the weights could not be written ({error}): free some space, or set MTRUN_CACHE to another disk."
        ) from error
    _write(folder / CONFIG, config)
    _write_texts(folder, facts)


def parameter_name(name: str) -> str:
    """`blk.3.attn_q.scales` -> `model.layers.3.self_attn.q_proj.scales`. Raises PackError for names not known."""
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in _TOP:
        return f"{_TOP[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER:
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"
    raise PackError(f"the GGUF tensor {name} is not one of a llama model's.")


def unpermute(rows: mx.array, heads: int) -> mx.array:
    """Rows [heads * d, ...] of q or k from GGUF's interleaved rotary pairs to the halves that HF configs mean.

    GGUF stores pair j of a head as rows 2j and 2j + 1; the half-split rotation pairs row j with row j + d/2.
    """
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


class _Facts:
    """Typed reads of GGUF metadata, which MLX gives as arrays, texts and lists."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def value(self, key: str) -> Any:
        if key not in self._metadata:
            raise PackError(f"the GGUF file lacks {key}: it is not a whole llama model.")
        found = self._metadata[key]
        return found.tolist() if hasattr(found, "tolist") else found

    def expect(self, key: str, wanted: str) -> None:
        if self.value(key) != wanted:
            raise PackError(f"the GGUF file has {key} {self.value(key)!r} where only {wanted!r} is converted.")


def _config(facts: _Facts, tensors: Mapping[str, Any]) -> dict[str, Any]:
    facts.expect("general.architecture", "llama")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": facts.value("llama.embedding_length"),
        "num_hidden_layers": facts.value("llama.block_count"),
        "intermediate_size": facts.value("llama.feed_forward_length"),
        "num_attention_heads": facts.value("llama.attention.head_count"),
        "num_key_value_heads": facts.value("llama.attention.head_count_kv"),
        # stored as float32; seven digits give back the number that was meant
        "rms_norm_eps": float(f"{facts.value('llama.attention.layer_norm_rms_epsilon'):.7g}"),
        "vocab_size": facts.value("llama.vocab_size"),
        "max_position_embeddings": facts.value("llama.context_length"),
        "rope_theta": float(facts.value("llama.rope.freq_base")),
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": facts.value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": facts.value("tokenizer.ggml.eos_token_id"),
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
    }


def _quantization(weights: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json's `quantization`: 4 bits, and by name whatever differs."""
    found: dict[str, Any] = {"group_size": _GROUP, "bits": 4, "mode": "affine"}
    for name, array in weights.items():
        module = name.removesuffix(".scales")
        if module != name:
            bits = weights[f"{module}.weight"].shape[-1] * 32 // (array.shape[-1] * _GROUP)
            if bits != found["bits"]:
                found[module] = {"group_size": _GROUP, "bits": bits}
    return found


def _write_texts(folder: Path, facts: _Facts) -> None:
    tokens = facts.value("tokenizer.ggml.tokens")
    bos, eos = facts.value("tokenizer.ggml.bos_token_id"), facts.value("tokenizer.ggml.eos_token_id")
    pad, unk = facts.value("tokenizer.ggml.padding_token_id"), facts.value("tokenizer.ggml.unknown_token_id")
    build_tokenizer(facts.value).save(str(folder / TOKENIZER))
    names = {"bos_token": tokens[bos], "eos_token": tokens[eos], "pad_token": tokens[pad], "unk_token": tokens[unk]}
    _write(folder / TOKENIZER_CONFIG, {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, **names})
    (folder / CHAT_TEMPLATE).write_text(facts.value("tokenizer.chat_template"), encoding="utf-8")
    sampler = {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "top_k": 20}
    _write(folder / GENERATION, {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad, **sampler})


def build_tokenizer(value: Callable[[str], Any]) -> Any:
    """The `tokenizers.Tokenizer` that GGUF metadata describes; `value` reads a metadata key. Raises PackError."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    for key, wanted in (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")):
        if value(key) != wanted:
            raise PackError(f"the GGUF file has {key} {value(key)!r} where only {wanted!r} is converted.")
    tokens, kinds = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in value("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=merges))
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Convert; a fault is one sentence on stderr and exit code 2."""
    source, folder = map(Path, arguments)
    try:
        convert(source, folder)
    except MtrunError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.strerror}: {error.filename}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
