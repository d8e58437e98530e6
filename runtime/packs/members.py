"""Where a pack's files lie: no relative path, link or special file may lead out of the pack's folder."""

from __future__ import annotations

import stat
from pathlib import Path, PurePosixPath

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.fields import shown

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
HEAD = "mtp.safetensors"
MANIFEST = "pack.yaml"
TEXTS = (CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE, INDEX)  # small, and decide what is computed


def checked_name(relative: str, where: str) -> str:
    """`relative` itself, if it names a file below the folder by plain components. Raises PackError."""
    path = PurePosixPath(relative)
    plain = 0 < len(relative) <= 500 and not path.is_absolute() and path.as_posix() == relative
    plain = plain and relative.isprintable()
    if not plain or "\\" in relative or ":" in relative or any(part in ("..", ".") for part in path.parts):
        raise PackError(f"{where}: {shown(relative)} must be a plain path inside the pack's folder.")
    return relative


def member(folder: Path, relative: str, where: str) -> Path:
    """The regular file `relative` of the pack. Raises PackError when absent, not a file, or leading out of `folder`.

    A hub cache keeps its files as links into a sibling `blobs` folder, so a link may end there, and only there.
    """
    path = folder / checked_name(relative, where)
    try:
        real = path.resolve(strict=True)
        regular = stat.S_ISREG(real.stat().st_mode)
    except (OSError, RuntimeError, ValueError) as error:
        raise PackError(f"{where}: the file {relative} is missing from {folder}: fetch the pack again.") from error
    if not any(real.is_relative_to(root) for root in _roots(folder)):
        raise PackError(f"{where}: {relative} is a link that leaves {folder}: copy the file into the pack instead.")
    if not regular:
        raise PackError(f"{where}: {relative} in {folder} is not a regular file.")
    return path


def _roots(folder: Path) -> list[Path]:
    real = folder.resolve()
    roots = [real]
    if real.parent.name == "snapshots" and (real.parent.parent / "blobs").is_dir():
        roots.append(real.parent.parent / "blobs")
    return roots
