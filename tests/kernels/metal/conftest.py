"""Where the Metal kernels run: on the emulator in three orders of threads, and on Metal itself where there is one."""

from __future__ import annotations

import mlx.core as mx
import pytest

from mtrun.kernels.metal.source import build
from support.metal_emulator.emulator import ORDERS, Emulator
from support.metal_emulator.faults import Runner


@pytest.fixture(scope="session")
def emulator(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    missing = Emulator.missing()
    if missing:
        pytest.skip(missing)
    kept = getattr(pytestconfig, "cache", None)  # absent under -p no:cacheprovider
    return Emulator(kept.mkdir("metal_emulator") if kept else tmp_path_factory.mktemp("metal_emulator"))


@pytest.fixture(params=[*ORDERS, *(["metal"] if mx.metal.is_available() else [])])
def runner(request: pytest.FixtureRequest) -> Runner:
    """From a source to a kernel that can be called here."""
    if request.param == "metal":
        return build
    return request.getfixturevalue("emulator").turned(request.param).kernel
