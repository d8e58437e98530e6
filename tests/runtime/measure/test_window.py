"""A text is scored by the trunk alone."""

from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mtrun.runtime.measure.window import score
from support.host_parts import host_parts
from support.tiny_parts import tiny_parts


def test_a_text_scores_the_same_in_whatever_arrays_the_trunk_speaks(tmp_path: Path) -> None:
    parts = tiny_parts(tmp_path)
    device, host = (
        score(SimpleNamespace(decoder=SimpleNamespace(parts=each)), [5, 9, 3], [7, 30, 2])
        for each in (parts, host_parts(parts))
    )
    rows = parts.trunk.forward(mx.array([[5, 9, 3, 7, 30]]), parts.trunk.new_caches(), "all").logits[2:]
    logs = rows - mx.logsumexp(rows, axis=-1, keepdims=True)
    assert device == pytest.approx(-sum(logs[i, token].item() for i, token in enumerate([7, 30, 2])) / 3, abs=1e-5)
    assert host == pytest.approx(device, abs=1e-5)
