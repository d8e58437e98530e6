"""A pack described from its texts and tensor headers: no weight is read, no code of the pack is run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtrun.lanes.contract import Decision
from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.fields import Fields, read_json, shown
from mtrun.runtime.packs.identity import check_listed
from mtrun.runtime.packs.manifest import LEAST, HeadWiring, Manifest, SamplerDefaults, read_manifest
from mtrun.runtime.packs.members import CONFIG, GENERATION, HEAD, MANIFEST, TEXTS, member
from mtrun.runtime.packs.quantization import Quantization, head_quantization, logical_shape, trunk_quantization
from mtrun.runtime.packs.tensors import TensorInfo, read_head_tensors, read_trunk_tensors

DRAFT_IDS = "draft_ids"
_FAMILY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_REMOTE_CODE = ("auto_map", "model_file")
_MTP_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")


@dataclass(frozen=True)
class PackDescription:
    """Everything that is known of a pack before its weights are read."""

    folder: Path
    name: str
    family: str  # config.json's model_type, never the folder's name
    config: dict[str, Any]  # config.json as written
    trunk: dict[str, TensorInfo]  # stored trunk tensors by name
    quantization: dict[str, Quantization]  # quantised trunk modules by name; empty = dense
    head: Decision  # whether an MTP head is present and fits this trunk
    head_tensors: dict[str, TensorInfo]  # empty unless head.ok
    head_quantization: dict[str, Quantization]  # the likeliest; the expected shapes settle it at load
    wiring: HeadWiring | None  # None unless head.ok
    draft_vocab_size: int | None  # ids in `draft_ids`; None = not shipped
    eos_ids: tuple[int, ...]
    vocab_size: int
    hidden_size: int
    layers: int
    context_length: int  # positions the model was made for
    sampler: SamplerDefaults
    float32_bytes: int  # trunk and head as dense float32
    manifest: Manifest | None  # None = a plain Hugging Face folder, whose files nothing vouches for
    facts: tuple[str, ...]  # what a reader should know: one sentence each

    @property
    def quantized_bits(self) -> int | None:
        """Bits of the most common stored trunk weight, None = dense."""
        bits = [how.bits for how in self.quantization.values()]
        return max(set(bits), key=bits.count) if bits else None


@dataclass(frozen=True)
class _HeadFound:
    decision: Decision
    tensors: dict[str, TensorInfo]  # empty unless decision.ok, as are the next two
    quantization: dict[str, Quantization]
    draft_vocab_size: int | None


def describe(folder: Path, *, hash_texts: bool = True) -> PackDescription:
    """Read config, manifest and tensor headers of the pack in `folder`. Raises PackError.

    The texts of a pack with a manifest are held against their checksums, unless `hash_texts` is false.
    """
    if not folder.is_dir():
        raise PackError(f"{folder} is not a folder: give pack=NAME, pack=FOLDER or pack=owner/name.")
    manifest = read_manifest(folder) if _exists(folder, MANIFEST) else None
    if manifest is not None and hash_texts:
        for name in (name for name in TEXTS if _exists(folder, name)):
            check_listed(manifest, member(folder, name, "pack"))
    config = read_config(folder)
    shape = Fields(config, CONFIG)
    trunk = read_trunk_tensors(folder)
    quantization = trunk_quantization(config, trunk)
    head = _head(folder, manifest, config)
    return PackDescription(
        folder=folder,
        name=manifest.name if manifest else folder.resolve().name,
        family=_family(config, manifest),
        config=config,
        trunk=trunk,
        quantization=quantization,
        head=head.decision,
        head_tensors=head.tensors,
        head_quantization=head.quantization,
        wiring=manifest.head.wiring if head.decision.ok and manifest and manifest.head else None,
        draft_vocab_size=head.draft_vocab_size,
        eos_ids=read_eos_ids(folder, config),
        vocab_size=shape.integer("vocab_size", 1, 2**24),
        hidden_size=shape.integer("hidden_size", 1, 2**20),
        layers=shape.integer("num_hidden_layers", 1, 4096),
        context_length=shape.integer("max_position_embeddings", 1, 2**20),
        sampler=_sampler(folder, manifest),
        float32_bytes=4 * (_elements(trunk, quantization) + _elements(head.tensors, head.quantization)),
        manifest=manifest,
        facts=_facts(folder, manifest),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """config.json. A config that asks for code from the pack is refused: mtrun never runs any. Raises PackError."""
    config = dict(Fields.of(read_json(member(folder, CONFIG, "pack")), CONFIG).data)
    for key in _REMOTE_CODE:
        if config.get(key):
            raise PackError(
                f"{CONFIG} in {folder} asks to run code that comes with the pack ({key}), which mtrun never does: "
                "choose a model of a family that it knows."
            )
    return config


def read_eos_ids(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Ids that end a reply: generation_config.json's where it has them, else config.json's. Raises PackError."""
    for source, name in ((_generation(folder), GENERATION), (config, CONFIG)):
        value = source.get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not ids or not all(type(one) is int and 0 <= one < 2**24 for one in ids):
            raise PackError(f"{name}: eos_token_id must be a token id or a list of them, not {shown(value)}.")
        return tuple(dict.fromkeys(ids))
    return ()


def _exists(folder: Path, name: str) -> bool:
    return (folder / name).exists() or (folder / name).is_symlink()


def _generation(folder: Path) -> Mapping[str, Any]:
    if not _exists(folder, GENERATION):
        return {}
    return Fields.of(read_json(member(folder, GENERATION, "pack")), GENERATION).data


def _family(config: Mapping[str, Any], manifest: Manifest | None) -> str:
    family = Fields(config, CONFIG).text("model_type")
    if not _FAMILY.match(family):
        raise PackError(f"{CONFIG}: model_type {shown(family)} is no name of a family: fetch the pack again.")
    if manifest is not None and manifest.family != family:
        theirs = shown(manifest.family)
        raise PackError(f"{MANIFEST} says family {theirs} and {CONFIG} says {family!r}: they must agree.")
    return family


def _sampler(folder: Path, manifest: Manifest | None) -> SamplerDefaults:
    """pack.yaml's defaults; where it names none, generation_config.json's, which Hugging Face writes very freely."""
    if manifest is not None and manifest.sampler != SamplerDefaults():
        return manifest.sampler
    data = _generation(folder)
    if data.get("do_sample") is False:
        return SamplerDefaults(temperature=0.0)

    def number(key: str, low: float, high: float) -> float | None:
        return Fields(data, GENERATION).number(key, low, high) if data.get(key) is not None else None

    top_k = Fields(data, GENERATION).integer("top_k", 0, 2**24) if data.get("top_k") is not None else None
    return SamplerDefaults(
        number("temperature", 0, 100),
        number("top_p", LEAST, 1),
        top_k,
        number("min_p", 0, 1),
        number("repetition_penalty", LEAST, 100),
    )


def _head(folder: Path, manifest: Manifest | None, config: Mapping[str, Any]) -> _HeadFound:
    """Whether the head fits, with what it holds. A head that does not fit never stops the trunk from serving."""
    entry = manifest.head if manifest else None
    if not _exists(folder, HEAD):
        if entry is not None or any(config.get(key) for key in _MTP_COUNTS):
            return _declined("head_missing", f"the pack promises an MTP head but {HEAD} is not in {folder}.")
        return _declined("no_head", "the pack ships no MTP head.")
    if manifest is None or entry is None:
        return _declined("unknown_wiring", f"{HEAD} is there but no {MANIFEST} says how it is wired.")
    if entry.wiring.layers != 1:
        return _declined("unknown_wiring", f"the head has {entry.wiring.layers} layers and mtrun runs heads of one.")
    if entry.trunk_identity != manifest.trunk_identity:
        theirs, ours = entry.trunk_identity[:12], manifest.trunk_identity[:12]
        return _declined("foreign_head", f"the head was trained for the trunk {theirs}, this one is {ours}.")
    try:
        tensors = read_head_tensors(folder) or {}
        draft_vocab = _draft_vocab(tensors, entry.draft_vocab_size)
        quantization = head_quantization(tensors, _input_widths(config))
    except PackError as error:
        return _declined("damaged_head", str(error))
    fits = Decision(True, "fits", f"{HEAD} was trained for this trunk, {manifest.trunk_identity[:12]}.")
    return _HeadFound(fits, tensors, quantization, draft_vocab)


def _declined(code: str, reason: str) -> _HeadFound:
    return _HeadFound(Decision(False, code, reason), {}, {}, None)


def _draft_vocab(tensors: Mapping[str, TensorInfo], promised: int | None) -> int | None:
    ids = tensors.get(DRAFT_IDS)
    if ids is not None and (ids.dtype != "I32" or len(ids.shape) != 1 or not ids.elements):
        raise PackError(f"{HEAD}: {DRAFT_IDS} must be a non-empty int32 vector, not {ids.dtype} {list(ids.shape)}.")
    size = None if ids is None else ids.elements
    if size != promised:
        raise PackError(f"{MANIFEST} says draft_vocab_size {promised} and {HEAD} holds {size}: they must agree.")
    return size


def _input_widths(config: Mapping[str, Any]) -> set[int]:
    """Input widths that a head's matrices can have: H, 2H, the attention's output and the feed-forward's middle."""
    shape = Fields(config, CONFIG)
    hidden, heads = shape.integer("hidden_size", 1, 2**20), shape.integer("num_attention_heads", 1, 2**16)
    head_dim = shape.integer("head_dim", 1, 2**16) if shape.has("head_dim") else hidden // heads
    return {hidden, 2 * hidden, heads * head_dim, shape.integer("intermediate_size", 1, 2**24)}


def _elements(tensors: Mapping[str, TensorInfo], quantization: Mapping[str, Quantization]) -> int:
    packed = {f"{module}.{part}" for module in quantization for part in ("weight", "scales", "biases")}
    dense = sum(tensor.elements for name, tensor in tensors.items() if name not in packed)
    return dense + sum(math.prod(logical_shape(module, how, tensors)) for module, how in quantization.items())


def _facts(folder: Path, manifest: Manifest | None) -> tuple[str, ...]:
    if manifest is None:
        return (f"there is no {MANIFEST}: files are not checked against checksums.",)
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return tuple(f"{MANIFEST} lists no {name}." for name in names if name != MANIFEST and name not in manifest.files)
