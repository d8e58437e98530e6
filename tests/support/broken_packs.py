"""Packs with one fault each, and what the product makes of a pack: loaded, declined its head, or one sentence."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mtrun.runtime.errors import ConfigurationError
from support.tiny_pack import write_tiny_pack

TRUNK, HEAD, INDEX, MANIFEST = "model.safetensors", "mtp.safetensors", "model.safetensors.index.json", "pack.yaml"
Header = dict[str, Any]
BASES: dict[str, dict[str, Any]] = {
    "single": {"draft_vocab": 64},
    "sharded": {"shards": 3, "draft_vocab": 64},
    "quantised": {"hidden": 64, "quantized": True, "draft_vocab": 64},
    "quantised-sharded": {"hidden": 64, "quantized": True, "shards": 2, "tied": False},
    "plain": {"manifest": False},
}


def write_base(folder: Path, base: str) -> Path:
    """A valid pack of `BASES`."""
    return write_tiny_pack(folder, **BASES[base])


@dataclass(frozen=True)
class Outcome:
    """What became of a pack."""

    refused: str | None = None  # the sentence
    head: str | None = None  # why the head was declined; None = it serves, or the pack was refused

    @property
    def served_whole(self) -> bool:
        return self.refused is None and self.head is None


def open_pack(folder: Path) -> Outcome:
    """Describes, loads and runs a pack by hand, as start-up does without lanes. Only our own errors are caught."""
    import mlx.core as mx

    from mtrun.runtime import memory
    from mtrun.runtime.packs.families import family_of
    from mtrun.runtime.packs.reader import describe
    from mtrun.runtime.packs.tokenizer import PackTokenizer
    from mtrun.runtime.preparation import pack_evidence

    try:
        pack = describe(folder)
        family = family_of(pack)
        pack_evidence(pack, family)
        memory.footprint(pack.config, pack.float32_bytes, family.cache_bytes(pack.config), pack.draft_vocab_size)
        PackTokenizer(folder)
        loaded = family.load(pack)
    except ConfigurationError as error:
        return Outcome(refused=str(error))
    trunk, ids = loaded.trunk, mx.array([[0, 1, 2]])
    out = trunk.forward(ids, trunk.new_caches(), "all")
    mx.eval(out.logits)
    if loaded.head is not None:
        mx.eval(loaded.head.forward(out.hidden, trunk.embed(ids), loaded.head.new_caches(), 0))
    return Outcome(head=None if pack.head.ok else pack.head.reason)


def start(folder: Path) -> Outcome:
    """The whole start-up on a thread of its own: compose, prepare, load with the lanes that arm themselves."""
    found: list[Outcome | BaseException] = []

    def work() -> None:
        try:
            found.append(_started(folder))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _started(folder: Path) -> Outcome:
    from mtrun.runtime import compose
    from mtrun.runtime.generator import MtpGenerator
    from mtrun.runtime.preparation import prepare

    try:
        prepared = prepare(compose([f"pack={folder}", "lanes.cpu_blas=false"]))
        generator = MtpGenerator(prepared)
        try:
            generator.load()
        finally:
            generator.close()
    except ConfigurationError as error:
        return Outcome(refused=str(error))
    head = prepared.pack.head
    return Outcome(head=None if head.ok else head.reason)


def sentence(text: str | None) -> str:
    """`text`, if it is one printable line that ends like a sentence."""
    assert text is not None
    assert text.isprintable(), text
    assert text.endswith("."), text
    assert 20 < len(text) < 900, text
    return text


def told(outcome: Outcome) -> str:
    """The sentence of a pack that was refused or lost its head."""
    assert not outcome.served_whole
    return sentence(outcome.refused or outcome.head)


def refused_with(folder: Path, words: str) -> None:
    """Asserts that a pack is refused in a sentence that matches `words`."""
    found = sentence(open_pack(folder).refused)
    assert re.search(words, found), found


def vouch(folder: Path) -> Path:
    """Makes pack.yaml list the files as they are now, so that a fault is met behind the checksums."""
    from mtrun.runtime.packs.identity import file_entries

    manifest = folder / MANIFEST
    if manifest.is_file():
        data = yaml.safe_load(manifest.read_text())
        data["files"] = {name: dict(vars(entry)) for name, entry in file_entries(folder).items()}
        manifest.write_text(yaml.safe_dump(data, sort_keys=False))
    return folder


def copy(source: Path, target: Path) -> Path:
    """A fresh copy of a pack."""
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target)
    return target


def raw(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """A fault in the bytes of a file; `TRUNK` means the one that holds the last norm, sharded or not."""

    def fault(folder: Path) -> None:
        file = shard_of(folder, "model.norm.weight") if name == TRUNK else folder / name
        file.write_bytes(change(file.read_bytes()))

    return fault


# -- safetensors, byte by byte ----------------------------------------------------------------------------------------
def split(path: Path) -> tuple[Header, bytes]:
    """Header and data of a safetensors file."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def join(path: Path, header: Header | bytes, data: bytes, claimed: int | None = None) -> None:
    """Writes a safetensors file; `claimed` is the header length it states, None = the true one."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if claimed is None else claimed).to_bytes(8, "little") + text + data)


def shard_of(folder: Path, name: str) -> Path:
    """The file that holds a trunk tensor."""
    index = folder / INDEX
    return folder / (json.loads(index.read_text())["weight_map"][name] if index.is_file() else TRUNK)


def set_header(path: Path, name: str, **changes: Any) -> None:
    """Changes a tensor's entry in the header alone."""
    header, data = split(path)
    header[name] |= changes
    join(path, header, data)


def set_values(path: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Changes a float tensor's values in place, whatever their stored float type: float32 [its shape] to the same."""
    header, data = split(path)
    entry = header[name]
    start, end = entry["data_offsets"]
    kind = {"F32": np.float32, "F16": np.float16}[entry["dtype"]]
    old = np.frombuffer(data[start:end], dtype=kind).reshape(entry["shape"])
    new = np.ascontiguousarray(change(old.astype(np.float32)).astype(kind)).tobytes()
    join(path, header, data[:start] + new + data[end:])


def add_tensor(path: Path, name: str, dtype: str, shape: list[int], values: bytes) -> None:
    """Appends a tensor to a file."""
    header, data = split(path)
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
    join(path, header, data + values)


def drop_tensor(path: Path, name: str) -> None:
    """Removes a tensor and closes the gap."""
    header, data = split(path)
    start, end = header.pop(name)["data_offsets"]
    for entry in (entry for key, entry in header.items() if key != "__metadata__"):
        entry["data_offsets"] = [at - (end - start) * (at >= end) for at in entry["data_offsets"]]
    join(path, header, data[:start] + data[end:])


# -- texts ------------------------------------------------------------------------------------------------------------
def edit_json(path: Path, **changes: Any) -> None:
    """Changes top-level keys; a value of Ellipsis removes its key."""
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))


def edit_yaml(path: Path, **changes: Any) -> None:
    """As `edit_json`."""
    data = {**yaml.safe_load(path.read_text()), **changes}
    kept = {key: value for key, value in data.items() if value is not ...}
    path.write_text(yaml.safe_dump(kept, sort_keys=False))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [one for key, held in inner for one in ((*path, key), *places(held, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of a JSON value with one place changed; Ellipsis removes it."""
    out = json.loads(json.dumps(value))
    holder = out
    for key in path[:-1]:
        holder = holder[key]
    if new is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = new
    return out
