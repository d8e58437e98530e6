"""Whole packs that faults are put into, made once."""

from pathlib import Path

import pytest

from mtrun.runtime.packs.embedded import embedded_packs
from support import broken_packs


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Those of `broken_packs.BASES` and the embedded pack, by name. Copy before use."""
    root = tmp_path_factory.mktemp("bases")
    made = {base: broken_packs.write_base(root / base, base) for base in broken_packs.BASES}
    return {**made, "nano": embedded_packs()["nano"]}
