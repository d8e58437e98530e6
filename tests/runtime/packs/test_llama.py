"""The llama trunk lets go of its weights and takes them back."""

import mlx.core as mx
import numpy as np
import pytest

from mtrun.runtime.packs import llama
from mtrun.runtime.packs.reader import describe
from support.tiny_pack import write_tiny_pack

IDS = mx.array([[3, 1, 4, 1, 5]], dtype=mx.int32)


@pytest.fixture
def trunk(tmp_path):
    write_tiny_pack(tmp_path)
    return llama.load(describe(tmp_path)).trunk


def rows(trunk):
    return np.array(trunk.forward(IDS, trunk.new_caches(), "all").logits)


@pytest.mark.parametrize(
    "use",
    [
        rows,
        lambda trunk: np.array(trunk.embed(IDS)),
        lambda trunk: np.array(trunk.project(mx.ones((1, trunk.hidden_size)))),
        lambda trunk: np.array(trunk.projection_rows(mx.array([0, 2]))),
    ],
    ids=["forward", "embed", "project", "projection_rows"],
)
def test_a_released_trunk_reads_its_weights_again_at_the_next_use(trunk, use):
    before = use(trunk)
    trunk.release()
    assert sum(value.size for value in llama.parameters(trunk.model).values()) == 0
    assert np.array_equal(use(trunk), before)
    assert sum(value.size for value in llama.parameters(trunk.model).values()) > 0


def test_what_the_pack_stores_can_be_had_after_a_release(trunk):
    before = {name: np.array(value) for name, value in trunk.stored().items()}
    trunk.release()
    after = trunk.stored()
    assert before.keys() == after.keys()
    assert all(np.array_equal(value, np.array(after[name])) for name, value in before.items())


def test_weights_that_cannot_be_read_again_are_kept(trunk):
    before = rows(trunk)
    trunk.reload = None
    trunk.release()
    assert sum(value.size for value in llama.parameters(trunk.model).values()) > 0
    assert np.array_equal(rows(trunk), before)
