"""The model families that mtrun can run, by `model_type`. A new family is one module and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mtrun.kernels.native.support import unsupported
from mtrun.lanes.contract import Decision
from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.llama_config import check_llama

if TYPE_CHECKING:
    from mtrun.runtime.packs.contract import Loaded
    from mtrun.runtime.packs.reader import PackDescription


@dataclass(frozen=True)
class Family:
    """What is known of a family without loading anything, and how it is loaded."""

    check: Callable[[PackDescription], None]  # raises PackError for a configuration that the family cannot have
    load: Callable[[PackDescription], Loaded]
    head_dim: Callable[[Mapping[str, Any]], int]
    trimmable_cache: Callable[[Mapping[str, Any]], bool]  # every layer rolls back exactly by trimming
    cache_bytes: Callable[[Mapping[str, Any]], int]  # KV bytes a token, all trunk layers, float32
    native: Callable[[PackDescription], Decision]  # whether the native library runs its layers


def _llama(description: PackDescription) -> Loaded:
    from mtrun.runtime.packs import llama

    return llama.load(description)


def _heads(config: Mapping[str, Any]) -> tuple[int, int]:
    """(key-value heads, width of a head)."""
    heads = int(config["num_attention_heads"])
    width = int(config.get("head_dim") or config["hidden_size"] // heads)
    return int(config.get("num_key_value_heads") or heads), width


def _llama_cache_bytes(config: Mapping[str, Any]) -> int:
    kv_heads, width = _heads(config)
    return int(config["num_hidden_layers"]) * 2 * kv_heads * width * 4


def _llama_native(description: PackDescription) -> Decision:
    reason = unsupported(description.config, [how.bits for how in description.quantization.values()])
    if reason is not None:
        return Decision(False, "layer", f"the native layer does not serve {description.name}: {reason}")
    return Decision(True, "supported", "the native layer serves this model")


LLAMA = Family(
    check=check_llama,
    load=_llama,
    head_dim=lambda config: _heads(config)[1],
    trimmable_cache=lambda config: "sliding_attention" not in (config.get("layer_types") or ()),
    cache_bytes=_llama_cache_bytes,
    native=_llama_native,
)
FAMILIES: Mapping[str, Family] = {"llama": LLAMA}


def family_of(description: PackDescription) -> Family:
    """Raises PackError when the pack's model_type is none of `FAMILIES`, or its configuration not one of its family."""
    if description.family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise PackError(f"{description.name} is a {description.family} model and mtrun runs {known}: choose another.")
    family = FAMILIES[description.family]
    family.check(description)
    return family
