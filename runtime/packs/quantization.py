"""Which stored modules are quantised, and how: MLX affine triples (`X.weight`, `X.scales`, `X.biases`) only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.fields import Fields, shown
from mtrun.runtime.packs.tensors import TensorInfo

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Quantization:
    """One module's storage: `bits` a weight, one scale and one bias for each `group_size` inputs."""

    bits: int
    group_size: int


def module_names(tensors: Mapping[str, TensorInfo]) -> list[str]:
    """Modules stored as triples. Raises PackError for an incomplete or ill-typed triple."""
    modules = []
    for name in tensors:
        if not name.endswith(".scales"):
            continue
        module = name.removesuffix(".scales")
        parts = [tensors.get(f"{module}.{part}") for part in ("weight", "scales", "biases")]
        if any(part is None for part in parts):
            raise PackError(f"{module} has scales but not all of weight, scales and biases: fetch the pack again.")
        weight, scales, biases = (part for part in parts if part is not None)
        typed = weight.dtype == "U32" and scales.dtype in _FLOATS and biases.dtype in _FLOATS
        rows = {part.shape[:-1] for part in (weight, scales, biases)}
        if not typed or len(rows) != 1 or scales.shape != biases.shape or len(weight.shape) < 2:
            raise PackError(f"{module} is not an affine triple of uint32 weight and float scales and biases.")
        modules.append(module)
    return modules


def trunk_quantization(config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> dict[str, Quantization]:
    """Bits and group of every quantised trunk module, by config.json's `quantization`. Raises PackError.

    The figures are checked against the stored shapes, so a wrong override is found before any weight is read.
    """
    modules = module_names(tensors)
    if "quantization" not in config:
        if config.get("quantization_config") is not None:
            raise PackError("config.json has a quantization_config that is not MLX's: convert the model with mlx_lm.")
        if modules:
            raise PackError(
                f"{modules[0]} is stored quantised but config.json has no quantization: say bits and group."
            )
        return {}
    fields = Fields.of(config["quantization"], "config.json: quantization")
    default = _read(fields)
    found = {}
    for module in modules:
        entry = fields.data.get(module)
        found[module] = _read(fields.mapping(module)) if isinstance(entry, dict) else default
        _check(module, found[module], tensors)
    return found


def head_quantization(tensors: Mapping[str, TensorInfo], inputs: Collection[int]) -> dict[str, Quantization]:
    """The likeliest bits and group of every quantised head module, from its shapes alone. Raises PackError.

    A row of w words and s scales only says bits * group = 32 w / s; `inputs`, the widths that a head of this trunk can
    have, narrow that down, and the smallest group is taken of what is left. Loading settles it with `infer`.
    """
    found = {}
    for module in module_names(tensors):
        packed, groups = tensors[f"{module}.weight"].shape[-1], tensors[f"{module}.scales"].shape[-1]
        fits = [how for width in inputs if (how := infer(packed, groups, width)) is not None]
        if not fits:
            raise PackError(f"mtp.safetensors: {module} has rows of {packed} words and {groups} scales: no width fits.")
        found[module] = min(fits, key=lambda how: how.group_size)
    return found


def infer(packed: int, groups: int, width: int) -> Quantization | None:
    """Bits and group of rows of `packed` words and `groups` scales that stand for `width` inputs, None = impossible."""
    if not packed or not groups or not width or width % groups or packed * 32 % width:
        return None
    how = Quantization(packed * 32 // width, width // groups)
    return how if how.bits in BITS and how.group_size in GROUPS else None


def logical_shape(module: str, how: Quantization, tensors: Mapping[str, TensorInfo]) -> tuple[int, ...]:
    """The dense shape that a triple stands for."""
    scales = tensors[f"{module}.scales"].shape
    return (*scales[:-1], scales[-1] * how.group_size)


def _read(fields: Fields) -> Quantization:
    mode = fields.data.get("mode", "affine")
    if mode != "affine":
        raise PackError(f"{fields.where}: mode {shown(mode)} is not read, only 'affine': convert the model again.")
    bits, group = fields.integer("bits", 1, 64), fields.integer("group_size", 1, 4096)
    if bits not in BITS or group not in GROUPS:
        raise PackError(f"{fields.where}: bits must be one of {BITS} and group_size one of {GROUPS}.")
    return Quantization(bits, group)


def _check(module: str, how: Quantization, tensors: Mapping[str, TensorInfo]) -> None:
    packed, groups = tensors[f"{module}.weight"].shape[-1], tensors[f"{module}.scales"].shape[-1]
    if packed * 32 != groups * how.group_size * how.bits:
        raise PackError(
            f"{module} has rows of {packed} words and {groups} scales, which is not {how.bits} bits in groups of "
            f"{how.group_size}: correct config.json's quantization."
        )
