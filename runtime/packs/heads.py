"""MTP heads that ship with mtrun itself, one folder each under `heads/`, and how one is put onto a fetched trunk.

A head's folder holds `mtp.safetensors` and `head.yaml`: the wiring keys of `manifest.HeadWiring`, `draft_vocab_size`
(where `draft_ids` is shipped), `sha256` of mtp.safetensors, `licence`, `trunk_source_sha256` (the file its trunk was
converted from), optionally `trunk_identity`, and `card`, free text and figures for people.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.fields import Fields, read_yaml
from mtrun.runtime.packs.identity import file_entries, sha256_file
from mtrun.runtime.packs.manifest import HeadEntry, HeadWiring, Manifest, parse_wiring, write_manifest
from mtrun.runtime.packs.members import HEAD, MANIFEST, member

CARD = "head.yaml"
PLAIN = "plain"  # the tag of a pack without a head
_KEYS = (
    *HeadWiring.__dataclass_fields__, "draft_vocab_size", "sha256", "licence", "trunk_source_sha256", "trunk_identity",
    "card",
)  # fmt: skip


@dataclass(frozen=True)
class CommittedHead:
    """A head in the product's own tree."""

    folder: Path
    wiring: HeadWiring
    draft_vocab_size: int | None
    trunk_source_sha256: str
    trunk_identity: str | None
    tag: str  # names this very head: a digest of both files


def heads_folder() -> Path:
    """Where the heads that ship with mtrun lie."""
    return Path(__file__).parent / "heads"


def committed_head(folder: Path) -> CommittedHead | None:
    """The head in `folder`, None where there is none. Raises PackError for one that does not match its own card."""
    if not (folder / CARD).is_file() and not (folder / HEAD).is_file():
        return None
    fields = Fields.of(read_yaml(member(folder, CARD, "head")), CARD)
    fields.allow(_KEYS)
    digest = sha256_file(member(folder, HEAD, "head"))
    if digest != fields.sha256("sha256"):
        raise PackError(f"{folder / HEAD} is not the file that its {CARD} describes: install mtrun again.")
    tag = hashlib.sha256(digest.encode() + (folder / CARD).read_bytes()).hexdigest()[:12]
    return CommittedHead(
        folder=folder,
        wiring=parse_wiring(fields),
        draft_vocab_size=fields.integer("draft_vocab_size", 1, 2**24) if fields.has("draft_vocab_size") else None,
        trunk_source_sha256=fields.sha256("trunk_source_sha256"),
        trunk_identity=fields.sha256("trunk_identity") if fields.has("trunk_identity") else None,
        tag=tag,
    )


def write_card(
    folder: Path,
    wiring: HeadWiring,
    trunk_source_sha256: str,
    licence: str,
    draft_vocab_size: int | None,
    card: Mapping[str, Any],
) -> Path:
    """Write `head.yaml` for the `mtp.safetensors` that lies in `folder`. `card` holds texts and figures for people."""
    import yaml

    content = {
        **vars(wiring),
        "draft_vocab_size": draft_vocab_size,
        "sha256": sha256_file(folder / HEAD),
        "licence": licence,
        "trunk_source_sha256": trunk_source_sha256,
        "card": dict(card),
    }
    path = folder / CARD
    kept = {key: value for key, value in content.items() if value is not None}
    path.write_text(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def attach(folder: Path, plain: Manifest, source_sha256: str, head: CommittedHead | None) -> Manifest:
    """Put `head` (or none) beside the trunk in `folder` and write the manifest for the result.

    `plain` is the manifest of the trunk, made from the file with `source_sha256`. A head made for another file is put
    there all the same: the reader declines it with the reason, which a silent omission would hide.
    """
    for name in (HEAD, CARD, MANIFEST):
        (folder / name).unlink(missing_ok=True)
    entry = None
    if head is not None:
        for name in (HEAD, CARD):
            shutil.copyfile(head.folder / name, folder / name)
        claimed = head.trunk_identity or head.trunk_source_sha256
        fits = head.trunk_source_sha256 == source_sha256
        entry = HeadEntry(head.wiring, plain.trunk_identity if fits else claimed, head.draft_vocab_size)
    known = {name: listed for name, listed in plain.files.items() if name not in (HEAD, CARD)}
    manifest = replace(plain, head=entry, files=file_entries(folder, known))
    write_manifest(folder, manifest)
    return manifest
