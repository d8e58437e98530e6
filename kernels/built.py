"""Files that the build puts beside the packages: where one is, without importing it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def built_file(folders: Iterable[str], names: Iterable[str]) -> str | None:
    """The first of `names` found in a package's folders (its `__path__`), None where nothing was built.

    An editable install has two folders: the sources, and the build's output in site-packages.
    """
    wanted = tuple(names)
    candidates = (Path(folder) / name for folder in folders for name in wanted)
    return next((str(path) for path in candidates if path.is_file()), None)
