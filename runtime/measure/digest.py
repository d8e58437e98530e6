"""Digests that name what was measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence


def sha256_of(value: object) -> str:
    """Hex sha256 of a JSON value in its canonical form."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def ids_digest(ids: Sequence[int]) -> str:
    """Hex sha256 of token ids as written in decimal, a space between two."""
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()
