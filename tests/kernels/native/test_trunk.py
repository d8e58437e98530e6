"""Whole forwards of trunk and head: MLX's numbers, and the bits of a cache that never held anything else."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mtrun.kernels.native import library as native_library
from mtrun.kernels.native.cache import NativeCache
from mtrun.kernels.native.convert import rope_table
from mtrun.kernels.native.library import NativeError
from mtrun.kernels.native.llama import NativeHead, NativeOut, NativeTrunk
from mtrun.kernels.native.support import unsupported
from support.native_packs import TinyModel, same_bits, tiny_model

OVERWRITE = "GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.perturb=165"  # freed memory, where glibc is
SUPPORT = Path(__file__).parents[2]
PAGE = 256  # positions of a page (kernels.h)
SHAPES = {
    "tied": {},
    "untied, every head its own": {
        "hidden": 40, "feed_forward": 52, "heads": 3, "kv_heads": 3, "head_dim": 8, "tied": False,
    },
    "two share, neighbours rotate": {"heads": 4, "kv_heads": 2, "head_dim": 24, "traditional": True},
    "three share": {"hidden": 52, "heads": 6, "kv_heads": 2, "head_dim": 64, "tied": False},
    "four share, odd widths": {
        "hidden": 33, "feed_forward": 49, "heads": 8, "kv_heads": 2, "head_dim": 80, "traditional": True,
    },
    "nine share": {"heads": 9, "kv_heads": 1, "head_dim": 16, "vocab": 129},
    "4 bits": {"hidden": 64, "feed_forward": 96, "heads": 4, "kv_heads": 2, "bits": 4, "group": 32},
    "8 bits": {
        "hidden": 128, "feed_forward": 192, "heads": 4, "kv_heads": 2, "head_dim": 32, "bits": 8, "group": 64,
        "tied": False,
    },
    "llama3": {
        "scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "linear": {"scaling": {"type": "linear", "factor": 4.0}, "traditional": True},
}  # fmt: skip


def tolerance(name: str) -> float:
    """Of the largest value. Rounding activations to 14 bits and more shows where weights are quantised."""
    return 5e-4 if "bits" in name else 5e-6


def apart(ours: np.ndarray | None, theirs: mx.array | None) -> float:
    """Largest difference of any value, relative to MLX's largest."""
    assert ours is not None
    wanted = np.array(theirs)
    assert ours.shape == wanted.shape
    return float(np.abs(ours - wanted).max() / np.abs(wanted).max())


def logits_of(out: NativeOut) -> np.ndarray:
    """A copy, which outlives the next forward."""
    assert out.logits is not None
    return out.logits.copy()


def parts_of(model: TinyModel, isa: str = "auto") -> tuple[NativeTrunk, NativeHead]:
    native = model.native(isa)
    assert native.head is not None
    return native.trunk, native.head


def ids_of(count: int, seed: int = 0, vocab: int = 64) -> np.ndarray:
    """[1, count] int32."""
    return np.random.default_rng(seed).integers(0, vocab, (1, count)).astype(np.int32)


@pytest.mark.parametrize("name", SHAPES)
def test_forwards_are_mlx_forwards(name):
    """A prefill, then a verify of 5; the head on both, too."""
    model = tiny_model(**SHAPES[name])
    trunk, head = parts_of(model)
    caches, theirs = trunk.new_caches(), model.trunk.new_caches()
    head_caches, their_head_caches = head.new_caches(), model.head.new_caches()
    for count in (37, 5):
        ids = ids_of(count, count, 70)
        ours = trunk.forward(ids, caches, "all")
        wanted = model.trunk.forward(mx.array(ids), theirs, "all")
        assert apart(ours.hidden, wanted.hidden) < tolerance(name)
        assert apart(ours.logits, wanted.logits) < tolerance(name)
        embedded = trunk.embed(ids)
        assert apart(embedded, model.trunk.embed(mx.array(ids))) < 1e-6
        states = head.forward(ours.hidden, embedded, head_caches, 0)
        stock = model.head.forward(mx.array(ours.hidden), mx.array(embedded), their_head_caches, 0)
        assert apart(states, stock) < tolerance(name)
        assert apart(trunk.project(states), model.trunk.project(stock)) < tolerance(name)
    assert caches[0].offset == head_caches[0].offset == 42


@pytest.mark.parametrize("name", ["llama3", "linear"])
def test_scaled_rotations_reach_the_table(name):
    """They turn the rows of a model, so that the comparison with MLX is one of scaled rotations."""
    scaled, plain = SHAPES[name], {**SHAPES[name], "scaling": None}
    rows = [tiny_model(**each).native().trunk for each in (scaled, plain)]
    first, second = (trunk.forward(ids_of(40), trunk.new_caches(), "none").hidden for trunk in rows)
    assert np.abs(first - second).max() > 1e-2


def test_a_partial_rotation_is_refused():
    with pytest.raises(NativeError, match="whole head"):
        rope_table(nn.RoPE(8), 16, False, 20)


def test_a_rotation_that_also_scales_is_refused():
    with pytest.raises(NativeError, match="whole head"):
        rope_table(lambda x: 1.1 * nn.RoPE(16)(x), 16, False, 20)


def test_asked_logits_are_rows_of_all_logits():
    trunk = long_model().native().trunk
    for count in (1, 5, 64, 65, 130):
        every = trunk.forward(ids_of(count), trunk.new_caches(), "all")
        rows, hidden = logits_of(every), every.hidden
        last = trunk.forward(ids_of(count), trunk.new_caches(), "last")
        assert same_bits(logits_of(last), rows[-1:])
        none = trunk.forward(ids_of(count), trunk.new_caches(), "none")
        assert none.logits is None
        assert same_bits(none.hidden, hidden)
        assert same_bits(last.hidden, hidden)
        assert same_bits(trunk.project(hidden)[0], rows)


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("tied", [False, True])
def test_rows_of_the_projection_are_the_lm_head(tied, bits):
    model = tiny_model(hidden=64, feed_forward=64, heads=4, bits=bits, tied=tied)
    ids = np.array([69, 0, 33], dtype=np.int32)
    table = model.trunk.model.model.embed_tokens if tied else model.trunk.model.lm_head
    weight = table.weight
    if bits is not None:
        weight = mx.dequantize(weight, table["scales"], table["biases"], 32, bits)
    assert apart(model.native().trunk.projection_rows(ids), weight[mx.array(ids)]) < 1e-6


@cache
def long_model() -> TinyModel:
    """Two layers of 4 heads on 2, with 700 positions."""
    return tiny_model(heads=4, kv_heads=2, context=700, vocab=64)


def test_a_long_context_is_mlx_s():
    """More than two pages: 620 positions at once, then 9 one by one, each row by itself near MLX's."""
    model, native = long_model(), long_model().native()
    caches, theirs = native.trunk.new_caches(), model.trunk.new_caches()
    for count in (620, *[1] * 9):
        ids = ids_of(count, count)
        ours = native.trunk.forward(ids, caches, "all")
        wanted = model.trunk.forward(mx.array(ids), theirs, "all")
        for row, stock in ((ours.hidden[0], wanted.hidden[0]), (ours.logits, wanted.logits)):
            error = np.abs(row - np.array(stock)).max(axis=1) / np.abs(np.array(stock)).max(axis=1)
            assert error.max() < 1e-5


def fed(trunk: NativeTrunk, ids: np.ndarray, chunks: tuple[int, ...], caches: list[NativeCache]) -> np.ndarray:
    """Hidden states [L, H] of ids [1, L] fed in chunks of these lengths, the last one repeated."""
    states, start, turn = [], 0, 0
    while start < ids.shape[1]:
        width = chunks[min(turn, len(chunks) - 1)]
        states.append(trunk.forward(ids[:, start : start + width], caches, "none").hidden[0])
        start, turn = start + width, turn + 1
    return np.concatenate(states)


@pytest.mark.parametrize("chunks", [(7,), (64,), (100,), (255, 1), (256, 9), (257,), (600,)])
def test_a_prefill_in_chunks_is_one_of_single_tokens(chunks):
    trunk = long_model().native().trunk
    ids = ids_of(600, 1)
    alone = single_tokens()
    caches = trunk.new_caches()
    assert same_bits(fed(trunk, ids, chunks, caches), alone)
    assert caches[0].offset == 600


@cache
def single_tokens() -> np.ndarray:
    """[600, H] hidden states of `ids_of(600, 1)` fed one by one."""
    trunk = long_model().native().trunk
    return fed(trunk, ids_of(600, 1), (1,), trunk.new_caches())


@pytest.mark.parametrize("junk", [1, 5, 300])
@pytest.mark.parametrize("kept", [1, PAGE - 1, PAGE, PAGE + 1])
def test_what_is_rolled_back_was_never_fed(kept, junk):
    """At the borders of a page, and across one and two of them."""
    trunk = long_model().native().trunk
    caches = trunk.new_caches()
    fed(trunk, ids_of(600, 1)[:, :kept], (600,), caches)
    fed(trunk, ids_of(junk, 2), (600,), caches)
    assert caches[0].trim(junk) == junk
    assert caches[0].offset == kept
    assert same_bits(
        fed(trunk, ids_of(600, 1)[:, kept : kept + 20], (3, 1, 9), caches), single_tokens()[kept : kept + 20]
    )


def test_no_more_is_trimmed_than_there_is():
    trunk = long_model().native().trunk
    cache = trunk.new_caches()[0]
    assert (cache.trim(3), cache.offset, cache.nbytes) == (0, 0, 0)
    trunk.forward(ids_of(5), [cache], "none")
    assert (cache.trim(9), cache.offset) == (5, 0)
    assert same_bits(fed(trunk, ids_of(600, 1)[:, :9], (4,), [cache]), single_tokens()[:9])


def test_pages_are_reserved_as_positions_come():
    trunk = long_model().native().trunk
    cache = trunk.new_caches()[0]
    page = 4 * 2 * 2 * 2 * PAGE * 16  # float32, keys and values, layers, heads, positions, width
    for length, pages in ((PAGE, 1), (PAGE + 1, 2), (2 * PAGE + 1, 3)):
        trunk.forward(ids_of(length - cache.offset), [cache], "none")
        assert cache.nbytes == pages * page
    cache.trim(500)
    assert cache.nbytes == 3 * page


def test_caches_take_turns():
    trunk = long_model().native().trunk
    texts = [ids_of(300, seed) for seed in (1, 5, 6)]
    alone = [fed(trunk, ids, (50,), trunk.new_caches()) for ids in texts]
    caches = [trunk.new_caches() for _ in texts]
    turns: list[list[np.ndarray]] = [[] for _ in texts]
    for start in range(0, 300, 10):
        for states, ids, each in zip(turns, texts, caches, strict=True):
            states.append(fed(trunk, ids[:, start : start + 10], (3, 7), each))
    assert all(map(same_bits, map(np.concatenate, turns), alone))


def poisoned(head: NativeHead, positions: int, caches: list[NativeCache]) -> None:
    """Leaves NaN in the keys and values of so many more positions."""
    nan = np.full((1, positions, head.hidden_size), np.nan, dtype=np.float32)
    assert np.isnan(head.forward(nan, nan, caches, 0)).all()


def states_of(head: NativeHead, count: int, caches: list[NativeCache]) -> np.ndarray:
    rng = np.random.default_rng(3)
    hidden, embedded = rng.standard_normal((2, 1, count, head.hidden_size)).astype(np.float32)
    return head.forward(hidden, embedded, caches, 0)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 300])
def test_nothing_is_read_of_what_pages_held_before(isa, count):
    """NaN in a freed page, or past the end of a trimmed cache, would show in every sum that it meets."""
    _, head = parts_of(long_model(), isa)
    fresh = states_of(head, count, head.new_caches())
    trimmed = head.new_caches()
    poisoned(head, 513, trimmed)
    trimmed[0].trim(513)
    assert same_bits(states_of(head, count, trimmed), fresh)
    dropped = [head.new_caches() for _ in range(3)]
    for index in range(3):
        poisoned(head, 513, dropped[index])
    del dropped, trimmed
    assert same_bits(states_of(head, count, head.new_caches()), fresh)


def run(script: str, *words: str) -> str:
    """Standard output of a process whose freed memory is overwritten, where the C library can do that."""
    lead = f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\n"
    path = str(native_library.library_path())
    lead += f"from mtrun.kernels.native import library; library.library_path = lambda: {path!r}\n"
    command = ["env", OVERWRITE, sys.executable, "-c", lead + script, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


DIGEST = """
import hashlib
from support.native_packs import tiny_model
import numpy as np
trunk = tiny_model(heads=4, kv_heads=2, context=700, vocab=64).native().trunk
ids = np.random.default_rng(1).integers(0, 64, (1, 600)).astype(np.int32)
print(hashlib.sha256(trunk.forward(ids, trunk.new_caches(), "none").hidden.tobytes()).hexdigest())
"""


def test_reused_pages_give_what_a_fresh_process_gives():
    trunk = long_model().native().trunk
    for seed in range(4):
        fed(trunk, ids_of(600, 10 + seed), (64,), trunk.new_caches())
    states = fed(trunk, ids_of(600, 1), (64,), trunk.new_caches())
    assert hashlib.sha256(states.tobytes()).hexdigest() == run(DIGEST)


ORDERS = """
import gc
from support.native_packs import tiny_model
import numpy as np
model = tiny_model(heads=4, kv_heads=2, context=700, vocab=64)
ids = np.zeros((1, 600), dtype=np.int32)
for turn in range(6):
    native = model.native()
    trunk, head = native.trunk, native.head
    caches = [trunk.new_caches()[0] for _ in range(3)]
    for each in caches:
        trunk.forward(ids, [each], "none")
    owners = [trunk.stack, trunk, head, head.stack, native.rows, trunk.engine]
    if turn < 4:  # a garbage cycle frees in any order: the stack and its pages before its caches, and after
        order = [*owners, *caches] if turn % 2 else [*caches, *owners]
        for each in order:
            each._free()
    else:
        owners.append(owners)
        caches[0].ring, trunk.ring = trunk, caches
    del native, trunk, head, caches, owners, each
    gc.collect()
print("done")
"""


def test_caches_and_stacks_are_freed_in_any_order():
    assert run(ORDERS) == "done"


@pytest.mark.parametrize("refused", [5, 64])
def test_positions_beyond_the_table_are_refused(refused):
    """And nothing is lost: the cache goes on as if nobody had asked."""
    model = tiny_model()
    trunk, head = parts_of(model)
    caches, head_caches = trunk.new_caches(), head.new_caches()
    hidden = fed(trunk, ids_of(60), (60,), caches)[None]
    head.forward(hidden, hidden, head_caches, 0)
    with pytest.raises(NativeError, match="context limit"):
        trunk.forward(ids_of(refused), caches, "all")
    with pytest.raises(NativeError, match="context limit"):
        head.forward(hidden[:, :refused], hidden[:, :refused], head_caches, 0)
    assert caches[0].offset == head_caches[0].offset == 60
    theirs = model.trunk.new_caches()
    model.trunk.forward(mx.array(ids_of(60)), theirs, "none")
    wanted = model.trunk.forward(mx.array(ids_of(4, 1)), theirs, "all").logits
    assert apart(trunk.forward(ids_of(4, 1), caches, "all").logits, wanted) < 5e-6
    assert caches[0].offset == trunk.context_limit == 64


@pytest.mark.parametrize("token", [-1, 64, 2**31 - 1, -(2**31)])
def test_tokens_outside_the_vocabulary_are_refused(token):
    trunk = long_model().native().trunk
    caches = trunk.new_caches()
    ids = np.array([[3, token]], dtype=np.int32)
    with pytest.raises(NativeError, match="outside the vocabulary"):
        trunk.forward(ids, caches, "none")
    with pytest.raises(NativeError, match="outside the vocabulary"):
        trunk.embed(ids)
    assert caches[0].offset == 0
    assert trunk.forward(ids_of(2), caches, "none").hidden.shape == (1, 2, 32)


def test_every_forward_is_told_of():
    trunk = long_model().native().trunk
    told = []
    trunk.hit = lambda: told.append(1)
    caches = trunk.new_caches()
    for want in ("all", "last", "none"):
        trunk.forward(ids_of(3), caches, want)
    assert len(told) == 3


LLAMA = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("changes", "bits", "reason"),
    [
        ({}, (), None),
        ({"num_key_value_heads": None, "layer_types": ["full_attention"]}, (4, 8, 4), None),
        ({"attention_bias": True}, (), "biases"),
        ({"mlp_bias": True}, (), "biases"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, (), "sliding window"),
        ({"num_key_value_heads": 3}, (), "4 heads of width 16 on 3 key-value heads"),
        ({"num_attention_heads": 65, "num_key_value_heads": 1, "head_dim": 16}, (), "65 heads"),
        ({"num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 16}, (), None),
        ({"head_dim": 18}, (), "width 18"),
        ({"hidden_size": 60}, (), "width 15"),
        ({}, (8, 5, 3), "quantised to 3 bits"),
    ],
)
def test_what_is_not_served_is_told_from_the_configuration(changes, bits, reason):
    told = unsupported({**LLAMA, **changes}, bits)
    assert told is None if reason is None else reason in told
