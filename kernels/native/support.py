"""What of a llama configuration the native layer serves, told from the pack's texts alone: nothing here imports mlx."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

BITS = (4, 8)  # of quantised weights


def unsupported(config: Mapping[str, Any], bits: Iterable[int]) -> str | None:
    """What a llama config.json has that the native layer lacks, None when nothing. `bits`: of its quantised modules."""
    if config.get("attention_bias") or config.get("mlp_bias"):
        return "its projections have biases"
    if "sliding_attention" in (config.get("layer_types") or ()):
        return "some of its layers attend in a sliding window"
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    width = int(config.get("head_dim") or config["hidden_size"] // heads)
    if heads % kv_heads or heads // kv_heads > 64 or width % 4:
        return f"{heads} heads of width {width} on {kv_heads} key-value heads are not a shape it serves"
    odd = sorted(set(bits) - set(BITS))
    return f"it is quantised to {odd[0]} bits" if odd else None
