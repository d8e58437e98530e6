"""Checksums: of one file, of every file of a pack, and of a trunk whatever files its tensors lie in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.manifest import FileEntry, Manifest
from mtrun.runtime.packs.members import MANIFEST
from mtrun.runtime.packs.tensors import TensorInfo

_BLOCK = 4 * 2**20


def sha256_file(path: Path) -> str:
    """Hex sha256 of the file's bytes. Raises PackError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PackError(f"{path} cannot be read ({error.strerror}).") from error


def check_listed(manifest: Manifest, path: Path, largest: int | None = None) -> None:
    """A manifest's claims hold only for the bytes that it lists: `path` has to be listed, with its own checksum.

    Files of more than `largest` bytes are not hashed. Raises PackError.
    """
    entry = manifest.files.get(path.name)
    if entry is None:
        raise PackError(f"{MANIFEST} of {manifest.name} lists no checksum for {path.name}: fetch the pack again.")
    if (largest is None or entry.bytes <= largest) and sha256_file(path) != entry.sha256:
        raise PackError(f"{path} does not match its checksum in {MANIFEST}: fetch the pack again.")


def trunk_identity(tensors: Iterable[TensorInfo]) -> str:
    """What a head names as the trunk it was trained for: hex sha256 over the trunk's tensors as stored.

    The digest covers, for each tensor in name order, the line `name dtype shape sha256(bytes)`. It does not depend on
    how the tensors are spread over files, on their order or on file metadata; any other weight or quantisation
    changes it.
    """
    whole = hashlib.sha256()
    for tensor in sorted(tensors, key=lambda one: one.name):
        shape = ",".join(map(str, tensor.shape))
        whole.update(f"{tensor.name} {tensor.dtype} {shape} {_sha256_span(tensor)}\n".encode())
    return whole.hexdigest()


def _sha256_span(tensor: TensorInfo) -> str:
    digest = hashlib.sha256()
    left = tensor.nbytes
    try:
        with tensor.file.open("rb") as file:
            file.seek(tensor.start)
            while left:
                block = file.read(min(_BLOCK, left))
                if not block:
                    raise PackError(f"{tensor.file} ended before tensor {tensor.name}: fetch the pack again.")
                digest.update(block)
                left -= len(block)
    except OSError as error:
        raise PackError(f"{tensor.file} cannot be read ({error.strerror}).") from error
    return digest.hexdigest()


def file_entries(folder: Path, known: Mapping[str, FileEntry] | None = None) -> dict[str, FileEntry]:
    """The manifest entry of every file of the pack but the manifest itself and hidden files.

    `known` entries are taken over without reading the file again.
    """
    entries = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in relative.parts)
        name = relative.as_posix()
        if path.is_file() and not hidden and name != MANIFEST:
            entries[name] = (known or {}).get(name) or FileEntry(sha256_file(path), path.stat().st_size)
    return entries
