"""Seeded faults: one change of a kernel's text that its checks have to catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest

from mtrun.kernels.metal.source import MetalKernel, MetalSource
from support.metal_emulator.emulator import ORDERS, EmulationError, Emulator

MISMATCH = "Mismatched elements|nan location mismatch"
RACE = "is a race"
RANGE = "out of range"

Runner = Callable[[MetalSource], MetalKernel]


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new`, once, in the kernel's body or header; `caught` is what the checks then say."""

    name: str
    old: str
    new: str
    caught: str
    kernel: str = ""  # the source's name where a module has several

    def planted(self, source: MetalSource) -> MetalSource:
        """The source with the fault in it. Fails unless the text occurs exactly once."""
        if self.kernel not in ("", source.name):
            return source
        assert source.header.count(self.old) + source.body.count(self.old) == 1, f"{self.name}: not found once"
        body, header = (text.replace(self.old, self.new) for text in (source.body, source.header))
        assert (body, header) != (source.body, source.header), self.name
        return replace(source, body=body, header=header)


def _kernel(emulator: Emulator, faulty: dict[str, MetalSource], source: MetalSource) -> MetalKernel:
    return emulator.kernel(faulty[source.name])


def assert_caught(
    fault: Fault, sources: tuple[MetalSource, ...], check: Callable[[Runner], None], on: Emulator
) -> None:
    """Fails unless `check`, run on the sources with the fault in them, ends as the fault says."""
    faulty = {source.name: fault.planted(source) for source in sources}
    assert any(faulty[source.name] != source for source in sources), f"{fault.name}: no source changed"

    def check_orders() -> None:
        for emulator in map(on.turned, ORDERS):
            check(partial(_kernel, emulator, faulty))

    with pytest.raises((EmulationError, AssertionError), match=fault.caught):
        check_orders()
