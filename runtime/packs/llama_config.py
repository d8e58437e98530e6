"""What a llama config.json must say before anything is built from it: nothing here imports mlx.

mlx-lm takes any value of any key and ignores keys that it does not know, so a figure of the wrong kind would end in an
exception of its own or, worse, in a model that computes something else.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.fields import Fields, label, shown
from mtrun.runtime.packs.members import CONFIG

if TYPE_CHECKING:
    from mtrun.runtime.packs.reader import PackDescription

_OPTIONAL = ("mscale", "mscale_all_dim", "attention_factor")  # zero means unused
_LAYER = "model.layers."
_LAYER_TYPES = ("full_attention", "sliding_attention")


def check_llama(description: PackDescription) -> None:
    """Raises PackError for a configuration that no llama model has, or that the stored trunk contradicts."""
    fields = Fields(description.config, CONFIG)
    _check_sizes(fields)
    _check_computation(fields)
    _check_layers(fields, description.layers, description.trunk)
    if fields.data.get("tie_word_embeddings") is None and "lm_head.weight" in description.trunk:
        raise PackError(f"{CONFIG} does not say whether the stored lm_head is used: add tie_word_embeddings.")


def _check_sizes(fields: Fields) -> None:
    hidden = fields.integer("hidden_size", 1, 2**20)
    fields.integer("intermediate_size", 1, 2**24)
    heads = fields.integer("num_attention_heads", 1, 2**16)
    kv_heads = fields.integer("num_key_value_heads", 1, 2**16) if fields.has("num_key_value_heads") else heads
    whole = fields.integer("head_dim", 1, 2**16) if fields.has("head_dim") else hidden / heads
    if whole != int(whole) or whole % 2 or heads % kv_heads:
        raise PackError(
            f"{CONFIG}: {heads} heads on {kv_heads} key-value heads of {whole:g} numbers are no attention: they must "
            "divide, and the width must be even."
        )


def _check_computation(fields: Fields) -> None:
    fields.number("rms_norm_eps", 0, 1)
    if "rope_theta" in fields.data:  # a null is no value that mlx-lm replaces by its default
        fields.number("rope_theta", 1, 1e12)
    elif fields.has("rope_parameters"):
        raise PackError(f"{CONFIG}: rope_parameters is not read: write rope_theta and rope_scaling instead.")
    for flag in ("attention_bias", "mlp_bias", "rope_traditional", "tie_word_embeddings"):
        fields.flag(flag, False)
    if fields.has("hidden_act") and fields.text("hidden_act") not in ("silu", "swish"):
        raise PackError(f"{CONFIG}: hidden_act {shown(fields.data['hidden_act'])} is not computed, only 'silu'.")
    if fields.data.get("rope_scaling") is not None:
        _check_scaling(fields.mapping("rope_scaling"))


def _check_scaling(scaling: Fields) -> None:
    """Every figure of it is a size or a factor; the kinds themselves are mlx-lm's to know."""
    for key in (key for key in ("type", "rope_type") if scaling.has(key)):
        scaling.text(key)
    for key, value in scaling.data.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, (int, float)) and not (0 if key in _OPTIONAL else 1e-9) <= number <= 1e12:
                raise PackError(f"{scaling.where}: {label(key)} must be above zero and finite, not {shown(number)}.")


def _check_layers(fields: Fields, layers: int, trunk: Collection[str]) -> None:
    stored = {name.removeprefix(_LAYER).partition(".")[0] for name in trunk if name.startswith(_LAYER)}
    if len(stored) != layers:
        raise PackError(
            f"{CONFIG} says num_hidden_layers {layers} and the weights hold {len(stored)}: they must agree."
        )
    types = fields.data.get("layer_types")
    if types is None:
        return
    known = isinstance(types, list) and len(types) == layers and all(one in _LAYER_TYPES for one in types)
    if not known or "full_attention" not in types:
        raise PackError(f"{CONFIG}: layer_types must name {layers} layers, each one of {', '.join(_LAYER_TYPES)}.")
    if "sliding_attention" in types:
        fields.integer("sliding_window", 1, 2**31)
