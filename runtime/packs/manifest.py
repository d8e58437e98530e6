"""`pack.yaml`: what a pack says of itself, and the checksums that hold it to that."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.fields import Fields, read_yaml, shown
from mtrun.runtime.packs.members import MANIFEST, checked_name, member

FORMAT_VERSION = 1
LEAST = 1e-6  # of sampler settings that must be above zero

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_VERSION = re.compile(r"\d{1,9}(\.\d{1,9}){0,3}\Z")
_KEYS = (
    "format_version", "min_engine_version", "name", "family", "trunk_identity", "head", "sampler", "provenance",
    "licence", "files",
)  # fmt: skip
_HEAD_KEYS = ("layers", "hidden", "concat", "chain", "max_depth", "trunk_identity", "draft_vocab_size")


@dataclass(frozen=True)
class HeadWiring:
    """How the MTP head is fed: (hidden of position i, embedding of token i + 1) -> state that predicts token i + 2."""

    layers: int = 1
    hidden: Literal["post_norm"] = "post_norm"  # the trunk state it reads: after the final norm
    concat: Literal["h_e"] = "h_e"  # proj(concat(norm(h), norm(e))), hidden first
    chain: Literal["post_norm"] = "post_norm"  # the state that depth d + 1 reads from depth d
    max_depth: int = 5  # drafts deeper than this are refused


@dataclass(frozen=True)
class HeadEntry:
    """The head of a pack. `trunk_identity` names the trunk it was trained for (`identity.trunk_identity`)."""

    wiring: HeadWiring
    trunk_identity: str
    draft_vocab_size: int | None = None  # rows of `draft_ids`; None = the head drafts over the whole vocabulary


@dataclass(frozen=True)
class SamplerDefaults:
    """What the pack's makers sample with. None = they do not say."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True)
class FileEntry:
    """What the manifest vouches for in one file."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """The content of `pack.yaml`. `files` holds every other file of the pack by relative path."""

    name: str
    family: str  # model_type of config.json
    trunk_identity: str
    licence: str
    files: dict[str, FileEntry]
    head: HeadEntry | None = None
    sampler: SamplerDefaults = SamplerDefaults()
    provenance: dict[str, str] = field(default_factory=dict)
    min_engine_version: str | None = None
    format_version: int = FORMAT_VERSION


def read_manifest(folder: Path, engine_version: str | None = None) -> Manifest:
    """`pack.yaml` of `folder`, with every listed file present, inside the folder and of the size listed.

    `engine_version` is the running mtrun's, None = look it up. Checksums are not computed here. Raises PackError.
    """
    fields = Fields.of(read_yaml(member(folder, MANIFEST, "pack")), MANIFEST)
    _check_versions(fields, engine_version)
    fields.allow(_KEYS)
    manifest = Manifest(
        name=_name(fields),
        family=fields.text("family"),
        trunk_identity=fields.sha256("trunk_identity"),
        licence=fields.text("licence"),
        files=_files(fields.mapping("files")),
        head=parse_head_entry(fields.mapping("head")) if fields.has("head") else None,
        sampler=parse_sampler(fields.mapping("sampler")) if fields.has("sampler") else SamplerDefaults(),
        provenance=_provenance(fields.mapping("provenance")) if fields.has("provenance") else {},
        min_engine_version=str(fields.data["min_engine_version"]) if fields.has("min_engine_version") else None,
    )
    _check_sizes(folder, manifest)
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write `pack.yaml` into `folder`. The order of keys is fixed, so equal manifests are equal bytes."""
    import yaml

    path = folder / MANIFEST
    path.write_text(yaml.safe_dump(to_mapping(manifest), sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def to_mapping(manifest: Manifest) -> dict[str, Any]:
    """The manifest as plain types in the order of the file; unset values are left out."""
    head = manifest.head
    wiring = {} if head is None else dict(vars(head.wiring)) | {"trunk_identity": head.trunk_identity}
    if head is not None and head.draft_vocab_size is not None:
        wiring["draft_vocab_size"] = head.draft_vocab_size
    full = {
        "format_version": manifest.format_version,
        "min_engine_version": manifest.min_engine_version,
        "name": manifest.name,
        "family": manifest.family,
        "licence": manifest.licence,
        "trunk_identity": manifest.trunk_identity,
        "head": wiring or None,
        "sampler": {key: value for key, value in vars(manifest.sampler).items() if value is not None} or None,
        "provenance": dict(manifest.provenance) or None,
        "files": {name: dict(vars(entry)) for name, entry in sorted(manifest.files.items())},
    }
    return {key: value for key, value in full.items() if value is not None}


def parse_head_entry(fields: Fields) -> HeadEntry:
    """The `head` mapping of a manifest. Wirings that this engine does not know are refused. Raises PackError."""
    fields.allow(_HEAD_KEYS)
    size = fields.integer("draft_vocab_size", 1, 2**24) if fields.has("draft_vocab_size") else None
    return HeadEntry(parse_wiring(fields), fields.sha256("trunk_identity"), size)


def parse_wiring(fields: Fields) -> HeadWiring:
    """The five wiring keys. Raises PackError."""
    return HeadWiring(
        layers=fields.integer("layers", 1, 64),
        hidden=cast(Literal["post_norm"], fields.choice("hidden", ("post_norm",))),
        concat=cast(Literal["h_e"], fields.choice("concat", ("h_e",))),
        chain=cast(Literal["post_norm"], fields.choice("chain", ("post_norm",))),
        max_depth=fields.integer("max_depth", 1, 64),
    )


def parse_sampler(fields: Fields) -> SamplerDefaults:
    """The `sampler` mapping. Raises PackError."""
    fields.allow(tuple(SamplerDefaults.__dataclass_fields__))
    return SamplerDefaults(
        temperature=fields.number("temperature", 0, 100) if fields.has("temperature") else None,
        top_p=fields.number("top_p", LEAST, 1) if fields.has("top_p") else None,
        top_k=fields.integer("top_k", 0, 2**24) if fields.has("top_k") else None,
        min_p=fields.number("min_p", 0, 1) if fields.has("min_p") else None,
        repetition_penalty=fields.number("repetition_penalty", LEAST, 100)
        if fields.has("repetition_penalty")
        else None,
    )


def _check_versions(fields: Fields, engine_version: str | None) -> None:
    version = fields.integer("format_version", 1, 2**31)
    if version != FORMAT_VERSION:
        raise PackError(f"{MANIFEST}: format_version {version} is newer than {FORMAT_VERSION}: pip install -U mtrun.")
    if not fields.has("min_engine_version"):
        return
    least = fields.data["min_engine_version"]
    plain = isinstance(least, str) or (isinstance(least, (int, float)) and abs(least) < 1e9)
    if isinstance(least, bool) or not plain or not _VERSION.match(str(least)):
        raise PackError(f"{MANIFEST}: min_engine_version must be a version such as '0.1.0', not {shown(least)}.")
    running = engine_version or running_version()
    if _version(str(least)) > _version(running):
        raise PackError(f"this pack needs mtrun {least} and {running} is running: pip install -U mtrun.")


def running_version() -> str:
    """The version of the running mtrun."""
    from importlib.metadata import version

    return version("mtrun")


def _version(text: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d+", text)[:4]]
    return tuple(numbers + [0] * (4 - len(numbers)))


def _name(fields: Fields) -> str:
    name = fields.text("name")
    if not _NAME.match(name):
        raise PackError(f"{MANIFEST}: name must be letters, digits, '.', '_' or '-', at most 64, not {shown(name)}.")
    return name


def _files(fields: Fields) -> dict[str, FileEntry]:
    entries = {}
    for relative in fields.data:
        one = fields.mapping(checked_name(relative, f"{MANIFEST}: files"))
        one.allow(("sha256", "bytes"))
        entries[relative] = FileEntry(one.sha256("sha256"), one.integer("bytes", 0, 2**62))
    return entries


def _provenance(fields: Fields) -> dict[str, str]:
    return {key: fields.text(key) for key in fields.data}


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    for relative, entry in manifest.files.items():
        size = member(folder, relative, f"{MANIFEST}: files").stat().st_size
        if size != entry.bytes:
            raise PackError(
                f"{relative} in {folder} has {size:,} bytes, {MANIFEST} says {entry.bytes:,}: fetch the pack again."
            )
