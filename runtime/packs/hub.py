"""`pack=`: a name of ours, a folder, or an id of the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.embedded import embedded_packs
from mtrun.runtime.packs.fetch import Fetcher
from mtrun.runtime.packs.members import CONFIG

Snapshot = Callable[..., str]

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}\Z")
# Texts and tensors only: nothing that could be run is even downloaded.
_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "pack.yaml", "head.yaml", "LICENSE*", "README.md")
# Second copies of the weights in a maker's own layout, and files of other runtimes in folders below.
_IGNORED = ("consolidated*.safetensors", "*/*")


def resolve(source: str, fetcher: Fetcher | None = None, cache_dir: Path | None = None, offline: bool = False) -> Path:
    """The folder that `source` means: a pack of ours by name, else an existing folder, else a hub id `owner/name`.

    A pack of ours that was never fetched is not fetched here: the error says what to type. A hub id is taken from the
    local hub cache (`cache_dir`, None = huggingface_hub's own) and downloaded only if absent and not `offline`.
    Raises PackError.
    """
    fetcher, embedded = fetcher or Fetcher(), embedded_packs()
    if source in embedded:
        return embedded[source]
    if source in fetcher.recipes:
        found = fetcher.cached(source)
        if found is None:
            here = "".join(f", or pack={name}, which needs no network" for name in embedded)
            raise PackError(f"the pack {source} is not fetched yet: type mtrun pack fetch {source}{here}.")
        return found
    folder = _as_folder(source)
    if folder is not None:
        return folder
    if not is_hub_id(source):
        names = ", ".join(sorted([*fetcher.recipes, *embedded]))
        raise PackError(f"pack {source!r} is neither one of {names}, nor a folder, nor a hub id such as owner/name.")
    return snapshot(source, cache_dir, offline)


def is_hub_id(source: str) -> bool:
    """Whether `source` has the form owner/name, with no way out of the hub's cache."""
    return bool(_HUB_ID.match(source)) and ".." not in source and "--" not in source


def snapshot(source: str, cache_dir: Path | None = None, offline: bool = False, refresh: bool = False) -> Path:
    """The local snapshot of a hub id, downloaded if absent (or if `refresh`) and not `offline`. Raises PackError."""
    if not is_hub_id(source):
        raise PackError(f"{source!r} is not a hub id: type it as owner/name.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    options: dict[str, Any] = {
        "allow_patterns": list(_PATTERNS),
        "ignore_patterns": list(_IGNORED),
        "cache_dir": cache_dir,
    }
    if not refresh or offline:
        try:
            return _checked(source, Path(snapshot_download(source, local_files_only=True, **options)))
        except (LocalEntryNotFoundError, ValueError, OSError) as error:
            if offline:
                raise PackError(f"{source} is not in the local hub cache: go online and type it again.") from error
    try:
        return _checked(source, Path(snapshot_download(source, **options)))
    except PackError:
        raise
    except Exception as error:  # the library lets its HTTP client's own exceptions through
        words = next(iter(str(error).split("\n")), "") or type(error).__name__
        raise PackError(
            f"{source} could not be fetched from the hub ({words}): check the id and the network."
        ) from error


def _checked(source: str, folder: Path) -> Path:
    if not (folder / CONFIG).is_file():
        raise PackError(f"the hub's {source} has no {CONFIG}: it is not a model that mtrun can read.")
    return folder


def _as_folder(source: str) -> Path | None:
    if not source or "\0" in source:
        raise PackError("pack is empty: type pack=smollm2, pack=FOLDER or pack=owner/name.")
    try:
        folder = Path(source).expanduser()
        if folder.is_dir():
            return folder.absolute()
    except (OSError, RuntimeError):
        return None
    if source.startswith(("/", "./", "../", "~")):
        raise PackError(f"there is no folder {source}: correct the path.")
    return None
