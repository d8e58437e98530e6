"""Sizes of memory as people write them."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_FORM = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([a-zA-Z]*)")
SIZE_HINT = "a size such as 8GiB, 500MB or a number of bytes"


def parse_bytes(text: str) -> int:
    """`8GiB` -> 8589934592; KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB are powers of 1024.

    Raises ValueError where the text is no size, or is less than one byte.
    """
    match = _FORM.fullmatch(text.strip())
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not {SIZE_HINT}")
    size = int(float(match.group(1)) * unit) if "." in match.group(1) else int(match.group(1)) * unit
    if size < 1:
        raise ValueError(f"{text!r} is less than one byte")
    return size
