"""A folder of parts that says what its parts are, so that parts of two kinds never mix."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import ConfigurationError


def settle(path: Path, theirs: Any, made_of: dict[str, Any], parts: str, aside: Collection[str] = ()) -> None:
    """Writes `made_of` to `path`, or holds it against `theirs`, its content (None = absent), keys in `aside` left out.

    `parts` names what the folder holds. Raises ConfigurationError on a difference, and for parts without a claim.
    """
    folder = path.parent
    if theirs is None:
        if folder.is_dir() and any(folder.glob("*.npz")):
            raise ConfigurationError(f"{folder} holds {parts} that do not say what they are: choose another --out.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(made_of, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{folder} cannot be written ({error.strerror}): choose another --out.") from error
        return
    known = theirs if isinstance(theirs, dict) else {}
    changed = [key for key, value in made_of.items() if key not in aside and known.get(key) != value]
    if changed:
        raise ConfigurationError(f"{folder} was made with another {', '.join(changed)}: choose another --out.")
