"""Finding, opening and filling the library: what is refused in one sentence, where weights lie, and what is freed."""

from __future__ import annotations

import gc
import shutil
import subprocess
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.native import engine as engines
from mtrun.kernels.native import library as native_library
from mtrun.kernels.native.convert import matrix
from mtrun.kernels.native.engine import Activation, Entry, NativeEngine, StoredMatrix
from mtrun.kernels.native.library import LIBRARY_NAMES, VERSION, NativeError, library_path, native_isa, open_library
from mtrun.kernels.native.rows import RowFilters
from mtrun.kernels.rows import RowFilter
from support.native_packs import random_dense, random_triple, same_bits, tiny_model

HUGE_PAGE = 2 << 20
STATM = Path("/proc/self/statm")


def refused(call, *arguments: object) -> str:
    """The one sentence of the error."""
    with pytest.raises(NativeError) as caught:
        call(*arguments)
    sentence = str(caught.value)
    assert sentence
    assert "\n" not in sentence
    assert ". " not in sentence
    assert not sentence.endswith(".")
    return sentence


def compiled(folder: Path, source: str) -> str:
    """A shared library of this C source; skips the test where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / "stand_in.c").write_text(source)
    path = folder / "stand_in.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, folder / "stand_in.c"], check=True, capture_output=True)
    return str(path)


def test_a_missing_library_is_told(monkeypatch, tmp_path):
    assert "install mtrun again" in refused(open_library, str(tmp_path / "none.so"))
    monkeypatch.setattr(native_library, "library_path", lambda: None)
    assert "was not built" in refused(open_library)
    assert "was not built" in refused(NativeEngine, "auto", 1, Activation.WIDE, [])
    assert native_isa() is None


def test_a_file_that_is_no_library_is_told(tmp_path, monkeypatch):
    (tmp_path / "text.so").write_text("text")
    assert "cannot be used" in refused(open_library, str(tmp_path / "text.so"))
    monkeypatch.setattr(native_library, "library_path", lambda: str(tmp_path / "text.so"))
    assert native_isa() is None


@pytest.mark.parametrize("version", [0, VERSION + 1])
def test_another_version_is_told(tmp_path, version):
    path = compiled(tmp_path, f"int mtrun_native_version(void) {{ return {version}; }}")
    assert f"interface {version}, not {VERSION}" in refused(open_library, path)


def test_a_missing_function_is_told(tmp_path):
    path = compiled(tmp_path, f"int mtrun_native_version(void) {{ return {VERSION}; }}")
    assert "lacks a function" in refused(open_library, path)


def test_a_library_of_others_is_told(tmp_path):
    path = compiled(tmp_path, "int another(void) { return 1; }")
    assert "mtrun_native_version" in refused(open_library, path)


@pytest.mark.parametrize("name", LIBRARY_NAMES)
def test_the_library_is_found_in_any_folder_of_the_package(monkeypatch, tmp_path, name):
    import mtrun.kernels.native as package

    folders = [tmp_path / "sources", tmp_path / "installed"]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setattr(package, "__path__", list(map(str, folders)))
    (folders[1] / name).mkdir()
    assert library_path() is None
    (folders[1] / name).rmdir()
    (folders[1] / name).touch()
    assert library_path() == str(folders[1] / name)


def test_sets_that_do_not_run_here_are_told(library):
    for isa in ("nothing", "", "AVX2"):
        assert f"no {isa} kernels here" in refused(NativeEngine, isa, 1, Activation.WIDE, [])
        assert f"no {isa} kernels here" in refused(RowFilters, library, isa)
    assert native_isa() == NativeEngine("auto", 1, Activation.WIDE, []).library.mtrun_native_isa(b"auto").decode()


def quantised(bits: int, group: int, inputs: int, outputs: int = 3) -> StoredMatrix:
    scales = np.ones((outputs, max(inputs // group, 1)), dtype=np.float32)
    return StoredMatrix(np.zeros((outputs, inputs * bits // 32), dtype=np.uint32), scales, scales, bits, group)


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (quantised(5, 32, 64), "3 x 64 cannot be packed: quantised weights have 4 or 8 bits"),
        (quantised(2, 32, 64), "4 or 8 bits"),
        (quantised(16, 32, 64), "4 or 8 bits"),
        (quantised(8, 48, 96), "3 x 96 cannot be packed: a scale stands for 32, 64 or 128 inputs"),
        (quantised(4, 16, 64), "32, 64 or 128"),
        (quantised(4, 256, 256), "32, 64 or 128"),
        (quantised(4, 128, 192), "the inputs do not divide into groups"),
        (quantised(8, 64, 96), "do not divide"),
        (StoredMatrix(np.zeros((0, 4), dtype=np.float32)), "at least one output"),
        (StoredMatrix(np.zeros((4, 0), dtype=np.float16)), "one input"),
    ],
)
def test_layouts_that_cannot_be_packed_are_refused(stored, reason):
    assert reason in refused(
        NativeEngine, "auto", 1, Activation.WIDE, [Entry(random_dense(3, 4, "float32")[0]), Entry(stored)]
    )
    engine = NativeEngine("auto", 1, Activation.WIDE, [Entry(random_dense(3, 4, "float32")[0])])
    before = engine.multiply(0, np.ones((1, 4), dtype=np.float32))
    assert reason in refused(engine.add, Entry(stored))
    assert same_bits(engine.multiply(0, np.ones((1, 4), dtype=np.float32)), before)
    assert engine.add(Entry(random_dense(3, 4, "float32")[0])) == 1


@pytest.mark.parametrize("bits", [2, 3, 5, 6])
def test_modules_of_other_bits_are_refused(bits):
    weight, scales, biases = mx.quantize(mx.ones((4, 128)), group_size=32, bits=bits)
    arrays = {"deep.weight": weight, "deep.scales": scales, "deep.biases": biases}
    sentence = refused(matrix, arrays, "deep", 128)
    assert sentence.startswith(f"deep is stored with {bits} bits in groups of 32")


ENTRIES = {
    "4 bits, halves": (Entry(random_triple(70, 256, 4, 64, "float16").stored), 96 * 256 // 32 * (16 + 4)),
    "4 bits": (Entry(random_triple(70, 256, 4, 64).stored), 96 * 256 // 32 * (16 + 8)),
    "8 bits": (Entry(random_triple(70, 256, 8, 64).stored), 96 * 256 // 32 * (32 + 8)),
    "dense": (Entry(random_dense(70, 100, "float32")[0]), 96 * 100 * 4),
    "bfloat16": (Entry(random_dense(70, 100, "bfloat16")[0]), 96 * 100 * 2),
    "rounded": (Entry(random_dense(70, 256, "float32")[0], four_bits=True), 96 * 256 // 32 * (16 + 8)),
    "rows": (Entry(random_dense(70, 100, "float32")[0], np.arange(5)), 32 * 100 * 4),
    "large": (Entry(random_dense(1000, 1000, "float32")[0]), 1024 * 1000 * 4),
}


@pytest.mark.parametrize("names", [*([name] for name in ENTRIES), list(ENTRIES)], ids=lambda names: names[-1])
def test_the_arena_holds_the_weights(names):
    """Tiles of 32 outputs, each matrix from a cache line on, in whole huge pages."""
    entries, sizes = zip(*(ENTRIES[name] for name in names), strict=True)
    arena = NativeEngine("auto", 1, Activation.WIDE, entries).arena()
    assert arena.used == sum(-(-size // 64) * 64 for size in sizes)
    assert arena.mapped >= arena.used
    assert arena.base % HUGE_PAGE == arena.mapped % HUGE_PAGE == 0
    huge = arena.huge_bytes()
    assert huge is None or 0 <= huge <= arena.mapped


def test_huge_pages_are_those_of_the_arena():
    """Mappings before and behind it do not count; of one that overlaps, no more than the arena."""
    smaps = """\
10000-20000 rw-p 00000000 00:00 0
Rss:                 64 kB
AnonHugePages:        4 kB
20000-30000 rw-p 00000000 00:00 0 [anon: weights]
AnonHugePages:        8 kB
VmFlags: rd wr
30000-50000 rw-p 00000000 00:00 0
AnonHugePages:       16 kB
50000-60000 rw-p 00000000 00:00 0
AnonHugePages:       32 kB
""".splitlines(keepends=True)
    count = engines._huge_bytes
    assert count(smaps, 0x20000, 0x50000) == 24 << 10
    assert count(smaps, 0x30000, 0x31000) == 4 << 10
    assert count(smaps, 0x60000, 0x70000) == 0
    assert count(smaps, 0x1F000, 0x21000) == 8 << 10


@pytest.mark.skipif(not STATM.exists(), reason="the system does not say how much memory a process holds")
def test_dropped_engines_and_caches_give_their_memory_back():
    stored = random_dense(1024, 1024, "float32")[0]
    trunk = tiny_model(hidden=32, heads=4, kv_heads=4, head_dim=64, context=300).native().trunk

    def round_trip() -> None:
        NativeEngine("auto", 2, Activation.WIDE, [Entry(stored)]).multiply(0, np.ones((4, 1024), dtype=np.float32))
        trunk.forward(np.zeros((1, 300), dtype=np.int32), trunk.new_caches(), "none")

    gc.collect()
    for _ in range(3):
        round_trip()
    before = resident()
    for _ in range(20):
        round_trip()
    assert resident() - before < 20 << 20  # one engine holds 4 MB, one cache 2 MB


def resident() -> int:
    """Bytes of this process in memory."""
    return int(STATM.read_text().split()[1]) * 4096


def test_matrices_are_added_beyond_the_first_arena():
    """Large ones and small ones, rounded or of some rows: all keep the products that they have alone."""
    engine = NativeEngine("auto", 1, Activation.WIDE, [ENTRIES["4 bits"][0]])
    first = engine.arena()
    added = ["8 bits", "large", "rounded", "large", "rows", "bfloat16"]
    assert [engine.add(ENTRIES[name][0]) for name in added] == [1, 2, 3, 4, 5, 6]
    assert sum(ENTRIES[name][1] for name in added) > first.mapped
    assert (engine.arena().base, engine.arena().mapped) == (first.base, first.mapped)
    for index, name in enumerate(["4 bits", *added]):
        entry = ENTRIES[name][0]
        x = np.random.default_rng(index).standard_normal((3, entry.matrix.inputs)).astype(np.float32)
        alone = NativeEngine("auto", 1, Activation.WIDE, [entry])
        assert same_bits(engine.multiply(index, x), alone.multiply(0, x))
        assert engine.outputs(index) == alone.outputs(0)
        assert same_bits(engine.row(index, 4, entry.matrix.inputs), alone.row(0, 4, entry.matrix.inputs))


def test_an_empty_engine_takes_its_first_matrix():
    engine = NativeEngine("auto", 1, Activation.WIDE, [])
    assert engine.arena().used == 0
    assert engine.add(ENTRIES["dense"][0]) == 0
    x = np.ones((1, 100), dtype=np.float32)
    assert same_bits(
        engine.multiply(0, x), NativeEngine("auto", 1, Activation.WIDE, [ENTRIES["dense"][0]]).multiply(0, x)
    )


def test_another_lm_head_serves_later_forwards():
    """And the one before again when told so; the embedding keeps its own weights."""
    model = tiny_model(vocab=90)
    trunk = model.native().trunk
    ids = np.arange(12, dtype=np.int32)[None]

    def logits() -> np.ndarray:
        rows = trunk.forward(ids, trunk.new_caches(), "all").logits
        assert rows is not None
        return rows.copy()

    before, embedded, exact = logits(), trunk.embed(ids), trunk.projection
    rounded = trunk.engine.add(Entry(trunk.lm_head, four_bits=True))
    trunk.use_projection(rounded)
    hidden = trunk.forward(ids, trunk.new_caches(), "none").hidden
    assert same_bits(logits(), trunk.engine.multiply(rounded, hidden[0])[:, :90])
    assert not same_bits(logits(), before)
    assert same_bits(trunk.project(hidden)[0], logits())
    assert same_bits(trunk.embed(ids), embedded)
    trunk.use_projection(exact)
    assert same_bits(logits(), before)


def test_misuse_is_refused_before_memory_is_touched():
    model = tiny_model(vocab=70).native()
    trunk, head = model.trunk, model.head
    caches = trunk.new_caches()
    ids = np.array([[1, 2, 3, 4, 5]], dtype=np.int32)
    hidden = trunk.forward(ids, caches, "none").hidden
    for wrong in (70, 95, -1):
        with pytest.raises(NativeError, match="outside the vocabulary"):
            trunk.embed(np.array([[wrong]], dtype=np.int32))
    assert (caches[0].trim(-3), caches[0].offset) == (0, 5)
    for wrong in (-1, 99):
        for use in (trunk.engine.outputs, trunk.use_projection, lambda i: trunk.engine.multiply(i, hidden[0])):
            with pytest.raises(IndexError):
                use(wrong)
    with pytest.raises(NativeError, match="another stack"):
        trunk.forward(ids, head.new_caches(), "none")
    with pytest.raises(NativeError, match="another stack"):
        head.forward(hidden, hidden, caches, 0)
    with pytest.raises(ValueError, match="at least one token"):
        trunk.forward(ids[:, :0], caches, "last")
    with pytest.raises(ValueError, match="pairs of shapes"):
        head.forward(hidden, hidden[:, :1], head.new_caches(), 0)
    how = RowFilter(1.0, 0.95, 5)
    for state, uniforms in ((hidden[0, -1, :8], np.zeros(3)), (hidden[0, -1], np.zeros(1))):
        with pytest.raises(ValueError, match="a chain of 3"):
            head.chain(state, head.new_caches(), 3, how, uniforms)
