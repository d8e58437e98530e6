"""The tensors that a pack's safetensors files hold, read from their headers alone.

A safetensors file is 8 bytes (little-endian length n), n bytes of JSON, then the data. Every figure of a header is
checked against the file's real size before anything is allocated from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.fields import Fields, label, one_line, parse_json, read_json, shown
from mtrun.runtime.packs.members import HEAD, INDEX, WEIGHTS, checked_name, member

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format itself
MAX_RANK = 8

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """One stored tensor. `start` is the absolute byte offset of its data in `file`."""

    name: str
    dtype: str  # safetensors spelling, e.g. "F32"
    shape: tuple[int, ...]
    file: Path
    start: int
    nbytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one safetensors file by name. Raises PackError for anything that does not add up."""
    size, raw = _header_bytes(path)
    try:
        header = parse_json(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        words = one_line(error)
        raise PackError(f"{path} has a header that is not JSON ({words}): fetch the pack again.") from error
    entries = Fields.of(header, f"{path}: the header").data
    data_start = 8 + len(raw)
    tensors = {
        name: _tensor(path, name, entry, data_start, size) for name, entry in entries.items() if name != "__metadata__"
    }
    _refuse_gaps(path, tensors, data_start, size)
    return tensors


def read_trunk_tensors(folder: Path) -> dict[str, TensorInfo]:
    """All trunk tensors, from one file or from the shards of an index. Raises PackError.

    Index and disk are compared both ways: shards, and the tensors in them. `mtp.safetensors` is never part of a trunk.
    """
    on_disk = {path.name for path in folder.glob("*.safetensors")} - {HEAD}
    if not (folder / INDEX).exists():
        if len(on_disk) != 1:
            found = f"{len(on_disk)} of them" if on_disk else "none"
            raise PackError(f"{folder} needs one {WEIGHTS}, or shards with {INDEX}: there is no index and {found}.")
        return read_header(member(folder, on_disk.pop(), "weights"))
    weight_map = _weight_map(folder)
    shards = set(weight_map.values())
    for missing in sorted(shards - on_disk):
        raise PackError(f"{INDEX} names the shard {missing}, which {folder} lacks: fetch the pack again.")
    for stray in sorted(on_disk - shards):
        raise PackError(f"{folder} holds {stray}, which {INDEX} does not name: remove it or fetch the pack again.")
    tensors: dict[str, TensorInfo] = {}
    for shard in sorted(shards):
        tensors |= _shard(folder, shard, weight_map, tensors)
    absent = sorted(set(weight_map) - set(tensors))
    if absent:
        raise PackError(f"{INDEX} names the tensor {absent[0]}, which no shard holds: fetch the pack again.")
    return tensors


def read_head_tensors(folder: Path) -> dict[str, TensorInfo] | None:
    """The tensors of `mtp.safetensors`, None where the pack has no such file. Raises PackError."""
    if not (folder / HEAD).exists() and not (folder / HEAD).is_symlink():
        return None
    return read_header(member(folder, HEAD, "head"))


def _weight_map(folder: Path) -> dict[str, str]:
    index = Fields.of(read_json(member(folder, INDEX, "weights")), INDEX).mapping("weight_map")
    weight_map: dict[str, str] = {}
    for tensor in index.data:
        shard = checked_name(index.text(_checked_tensor(tensor, INDEX)), INDEX)
        if shard != HEAD:
            weight_map[tensor] = shard
    if not weight_map:
        raise PackError(f"{INDEX} in {folder} names no tensor: fetch the pack again.")
    return weight_map


def _shard(folder: Path, shard: str, weight_map: dict[str, str], seen: dict[str, TensorInfo]) -> dict[str, TensorInfo]:
    held = read_header(member(folder, shard, "weights"))
    for name in held:
        if name in seen:
            raise PackError(f"the tensor {name} lies in two shards, {seen[name].file.name} and {shard}.")
        if weight_map.get(name) != shard:
            raise PackError(f"{shard} holds the tensor {name}, which {INDEX} does not place there.")
    return held


def _header_bytes(path: Path) -> tuple[int, bytes]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 10:
                raise PackError(f"{path} is {size} bytes long, too short for weights: fetch the pack again.")
            if length < 2 or length > min(size - 8, MAX_HEADER_BYTES):
                raise PackError(
                    f"{path} claims a header of {length:,} bytes in a file of {size:,}: the file is damaged or cut "
                    "short, fetch the pack again."
                )
            return size, file.read(length)
    except OSError as error:
        raise PackError(f"{path} cannot be read ({error.strerror}).") from error


def _checked_tensor(name: str, where: str) -> str:
    """`name` itself, if it can stand in a message and in a list of parameters. Raises PackError."""
    if not name.isprintable() or not 0 < len(name) <= 500:
        raise PackError(f"{where}: {shown(name)} is no name of a tensor: the file is damaged.")
    return name


def _tensor(path: Path, name: str, entry: Any, data_start: int, size: int) -> TensorInfo:
    where = f"{path}: tensor {label(_checked_tensor(name, str(path)))}"
    fields = Fields.of(entry, where)
    dtype = fields.choice("dtype", ITEM_BYTES)
    shape = _whole_numbers(entry.get("shape"), f"{where}: shape")
    offsets = _whole_numbers(entry.get("data_offsets"), f"{where}: data_offsets")
    if len(shape) > MAX_RANK or len(offsets) != 2:
        raise PackError(f"{where} has {len(shape)} dimensions and {len(offsets)} offsets: the file is damaged.")
    nbytes = math.prod(shape) * ITEM_BYTES[dtype]
    begin, end = offsets
    if end - begin != nbytes or end > size - data_start:
        raise PackError(
            f"{where} claims {nbytes:,} bytes at {begin:,} to {end:,} of {size - data_start:,}: the file is damaged or "
            "cut short, fetch the pack again."
        )
    return TensorInfo(name, dtype, shape, path, data_start + begin, nbytes)


def _whole_numbers(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < 2**63 for one in value):
        raise PackError(f"{where} must be a list of whole numbers: the file is damaged.")
    return tuple(value)


def _refuse_gaps(path: Path, tensors: dict[str, TensorInfo], data_start: int, size: int) -> None:
    at = data_start
    for tensor in sorted(tensors.values(), key=lambda one: (one.start, one.nbytes)):
        if tensor.start != at:
            raise PackError(f"{path}: tensor {tensor.name} overlaps another or leaves a gap: the file is damaged.")
        at += tensor.nbytes
    if at != size:
        raise PackError(f"{path} holds {size - at:,} bytes that no tensor owns: the file is damaged.")
