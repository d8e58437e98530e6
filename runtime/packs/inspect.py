"""A pack told to people and to scripts, and held against its own checksums."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.identity import file_entries, trunk_identity
from mtrun.runtime.packs.members import MANIFEST
from mtrun.runtime.packs.reader import PackDescription, describe
from mtrun.runtime.packs.tensors import read_trunk_tensors


def inspect(description: PackDescription) -> dict[str, Any]:
    """The pack as plain JSON types. Null means that the pack does not say."""
    manifest = description.manifest
    schemes = Counter((how.bits, how.group_size) for how in description.quantization.values())
    return {
        "name": description.name,
        "folder": str(description.folder),
        "family": description.family,
        "layers": description.layers,
        "hidden_size": description.hidden_size,
        "vocab_size": description.vocab_size,
        "context_length": description.context_length,
        "eos_ids": list(description.eos_ids),
        "tensors": len(description.trunk),
        "quantization": [
            {"bits": bits, "group_size": group, "modules": count} for (bits, group), count in schemes.most_common()
        ],
        "float32_bytes": description.float32_bytes,
        "head": {
            "fits": description.head.ok,
            "code": description.head.code,
            "reason": description.head.reason,
            "wiring": vars(description.wiring) if description.wiring else None,
            "draft_vocab_size": description.draft_vocab_size,
            "tensors": len(description.head_tensors),
        },
        "sampler": dict(vars(description.sampler)),
        "trunk_identity": manifest.trunk_identity if manifest else None,
        "licence": manifest.licence if manifest else None,
        "provenance": dict(manifest.provenance) if manifest else None,
        "facts": list(description.facts),
    }


def verify(folder: Path) -> list[str]:
    """What differs between the pack and its manifest, one sentence each; empty = nothing. Reads every byte.

    Raises PackError where the pack cannot be read at all or has no manifest to hold it against.
    """
    manifest = describe(folder, hash_texts=False).manifest
    if manifest is None:
        raise PackError(f"{folder} has no {MANIFEST}, so there is nothing to verify it against.")
    found = file_entries(folder)
    differences = [f"{name} is not listed in {MANIFEST}." for name in sorted(set(found) - set(manifest.files))]
    for name, entry in sorted(manifest.files.items()):
        if name not in found:
            differences.append(f"{name} is listed in {MANIFEST} but missing.")
        elif found[name] != entry:
            differences.append(f"{name} has sha256 {found[name].sha256[:12]}, {MANIFEST} says {entry.sha256[:12]}.")
    actual = trunk_identity(read_trunk_tensors(folder).values())
    if actual != manifest.trunk_identity:
        differences.append(f"the trunk is {actual[:12]}, {MANIFEST} says {manifest.trunk_identity[:12]}.")
    return differences
