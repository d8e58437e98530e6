"""A pack's weights as MLX arrays: exactly the tensors that the family expects, of the expected shapes, all finite.

Arrays belong to the thread that made them, so both loaders evaluate what they return on the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.fields import one_line
from mtrun.runtime.packs.identity import check_listed
from mtrun.runtime.packs.quantization import Quantization, infer
from mtrun.runtime.packs.reader import DRAFT_IDS, PackDescription
from mtrun.runtime.packs.tensors import TensorInfo

if TYPE_CHECKING:
    import mlx.core as mx

CHECKED_BYTES = 2**30  # files up to this size are checked against their checksum at load, larger ones by `pack verify`

_SHIFTED = 0.25  # share of norm weights below zero; SmolLM2 has .01, and .98 once shifted

Shapes = Mapping[str, tuple[int, ...]]  # dense parameter name -> shape


@dataclass(frozen=True)
class _Plan:
    """What is stored and how it stands for the expected dense parameters."""

    what: str  # "trunk" or "head", for messages
    stored: Mapping[str, TensorInfo]
    quantization: Mapping[str, Quantization]  # by module


def load_trunk_weights(
    description: PackDescription,
    expected: Shapes,
    *,
    dequantize: bool = True,
    ignore: Callable[[str], bool] | None = None,
) -> dict[str, mx.array]:
    """The trunk's parameters by name. `expected` are the family's dense names and shapes.

    With `dequantize` every floating array comes as dense float32. Without it arrays come as stored, and a quantised
    module X yields `X.weight` uint32 [out, in * bits / 32] with `X.scales` and `X.biases` [out, in / group].
    `ignore` says which stored names are known leftovers (buffers, the copy of a tied matrix). Raises PackError.
    """
    _check_files(description, {info.file for info in description.trunk.values()})
    stored = {name: info for name, info in description.trunk.items() if ignore is None or not ignore(name)}
    return _load(_Plan("trunk", stored, description.quantization), expected, dequantize)


def load_head_weights(
    description: PackDescription, expected: Shapes, *, dequantize: bool = True
) -> dict[str, mx.array]:
    """The head's parameters by name, as `load_trunk_weights` gives them, and `draft_ids` int32 [V'] where shipped.

    `draft_ids` is not in `expected`. Ids outside the trunk's vocabulary and repeated ids are refused. Raises PackError.
    """
    import mlx.core as mx

    if not description.head.ok:
        raise PackError(f"the head of {description.name} cannot be loaded: {description.head.reason}")
    _check_files(description, {info.file for info in description.head_tensors.values()})
    stored = dict(description.head_tensors)
    ids = stored.pop(DRAFT_IDS, None)
    weights = _load(_Plan("head", stored, _settle(stored, expected)), expected, dequantize)
    if ids is not None:
        weights[DRAFT_IDS] = mx.array(_draft_ids(ids, description.vocab_size), dtype=mx.int32)
    return weights


def _check_files(description: PackDescription, files: Collection[Path]) -> None:
    if description.manifest is not None:
        for file in sorted(files):
            check_listed(description.manifest, file, CHECKED_BYTES)


def _settle(stored: Mapping[str, TensorInfo], expected: Shapes) -> dict[str, Quantization]:
    """Bits and group of each quantised head module, from the widths that the family expects."""
    found = {}
    for name in (name for name in stored if name.endswith(".scales")):
        module = name.removesuffix(".scales")
        shape = expected.get(f"{module}.weight")
        if shape is None:
            raise PackError(f"the head holds {name}, which its family does not have: fetch the pack again.")
        packed, groups = stored[f"{module}.weight"].shape[-1], stored[name].shape[-1]
        how = infer(packed, groups, shape[-1])
        if how is None:
            raise PackError(
                f"the head's {module} has rows of {packed} words and {groups} scales, not {shape[-1]} inputs."
            )
        found[module] = how
    return found


def _load(plan: _Plan, expected: Shapes, dequantize: bool) -> dict[str, mx.array]:
    import mlx.core as mx

    _compare(plan, expected)
    arrays = _read(plan)
    weights: dict[str, mx.array] = {}
    for name, shape in expected.items():
        module = name.removesuffix(".weight")
        how = plan.quantization.get(module) if name.endswith(".weight") else None
        if how is None:
            weights[name] = _float32(arrays[name]) if dequantize else arrays[name]
        elif dequantize:
            scales, biases = _float32(arrays[f"{module}.scales"]), _float32(arrays[f"{module}.biases"])
            weights[name] = mx.dequantize(arrays[name], scales, biases, how.group_size, how.bits).reshape(shape)
        else:
            weights |= {f"{module}.{part}": arrays[f"{module}.{part}"] for part in ("weight", "scales", "biases")}
    mx.eval(weights)
    _refuse_non_finite(plan, arrays)
    _refuse_shifted_norms(plan, arrays)
    return weights


def _compare(plan: _Plan, expected: Shapes) -> None:
    """No missing, no extra, shapes equal."""
    parts = {f"{module}.{part}" for module in plan.quantization for part in ("scales", "biases")}
    missing = sorted(set(expected) - set(plan.stored))
    extra = sorted(set(plan.stored) - set(expected) - parts)
    if missing:
        raise PackError(f"the {plan.what} lacks {missing[0]}{_more(missing)}: fetch the pack again.")
    if extra:
        raise PackError(f"the {plan.what} holds {extra[0]}{_more(extra)}, which its family does not have.")
    for name, shape in expected.items():
        how = plan.quantization.get(name.removesuffix(".weight"))
        stored = plan.stored[name].shape
        if how is not None:
            groups = plan.stored[f"{name.removesuffix('.weight')}.scales"].shape
            stored = (*stored[:-1], groups[-1] * how.group_size)
        if stored != tuple(shape):
            raise PackError(
                f"the {plan.what}'s {name} has shape {list(stored)} where config.json implies {list(shape)}: the "
                "weights belong to another model."
            )


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _read(plan: _Plan) -> dict[str, mx.array]:
    """Stored arrays by name, lazily. Headers were checked before, so a failure here means that the file changed."""
    import mlx.core as mx

    arrays: dict[str, mx.array] = {}
    for file in sorted({info.file for info in plan.stored.values()}):
        loaded = _mx_load(file)
        arrays |= {name: loaded[name] for name, info in plan.stored.items() if info.file == file and name in loaded}
    for name, info in plan.stored.items():
        if name not in arrays or tuple(arrays[name].shape) != info.shape:
            raise PackError(f"{info.file} changed while it was read ({name}): start again.")
        packed = info.dtype == "U32" and name.removesuffix(".weight") in plan.quantization
        if not packed and not mx.issubdtype(arrays[name].dtype, mx.floating):
            raise PackError(f"the {plan.what}'s {name} is stored as {info.dtype}, which is no floating type.")
    return arrays


def _mx_load(file: Path) -> dict[str, mx.array]:
    import mlx.core as mx

    try:
        loaded = mx.load(str(file), format="safetensors")
    except (RuntimeError, ValueError, OSError) as error:
        raise PackError(f"MLX cannot read {file} ({one_line(error)}): fetch the pack again.") from error
    if not isinstance(loaded, dict):
        raise PackError(f"{file} holds no named tensors: fetch the pack again.")
    return loaded


def _float32(array: mx.array) -> mx.array:
    import mlx.core as mx

    return array.astype(mx.float32)


def _refuse_non_finite(plan: _Plan, arrays: Mapping[str, mx.array]) -> None:
    """Checks what is stored: the scales and biases of a triple stand for its whole matrix."""
    import mlx.core as mx

    names = [name for name, array in arrays.items() if mx.issubdtype(array.dtype, mx.floating)]
    finite = mx.stack([mx.all(mx.isfinite(arrays[name])) for name in names])  # [tensors] bool
    for name, ok in zip(names, finite.tolist(), strict=True):  # pyright: ignore[reportArgumentType]
        if not ok:
            raise PackError(f"the {plan.what}'s {name} holds NaN or infinity: the weights are damaged.")


def _refuse_shifted_norms(plan: _Plan, arrays: Mapping[str, mx.array]) -> None:
    """RMSNorm factors of trained models are above zero but for stray ones; stored as `factor - 1`, most are not.

    Some families store them so, and a conversion that forgets to add the one leaves a model that answers nonsense.
    """
    import mlx.core as mx

    norms = [array for name, array in arrays.items() if name.endswith("norm.weight") and array.ndim == 1]
    if not norms:
        return
    below = sum(cast(int, mx.sum(norm < 0).item()) for norm in norms) / max(1, sum(norm.size for norm in norms))
    if below > _SHIFTED:
        raise PackError(
            f"{below:.0%} of the {plan.what}'s norm weights are below zero, as if stored less one: convert the model "
            "again with 1 added to them."
        )


def _draft_ids(info: TensorInfo, vocab_size: int) -> list[int]:
    ids = cast(list[int], _mx_load(info.file)[DRAFT_IDS].tolist())
    if len(set(ids)) != len(ids) or not all(0 <= one < vocab_size for one in ids):
        raise PackError(f"the head's {DRAFT_IDS} must be distinct ids below the vocabulary of {vocab_size}.")
    return ids
