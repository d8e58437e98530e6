"""Safetensors headers from files nobody vouches for, and shards against their index."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.identity import trunk_identity
from mtrun.runtime.packs.tensors import read_head_tensors, read_header, read_trunk_tensors
from support.tiny_pack import write_tiny_pack

INDEX = "model.safetensors.index.json"


def write(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


def entry(dtype: str = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_headers_match_what_mlx_reads(tmp_path: Path) -> None:
    import mlx.core as mx

    pack = write_tiny_pack(tmp_path / "pack", quantized=True, hidden=64)
    tensors = read_header(pack / "model.safetensors")
    loaded = mx.load(str(pack / "model.safetensors"))
    assert isinstance(loaded, dict)
    assert {name: info.shape for name, info in tensors.items()} == {name: a.shape for name, a in loaded.items()}


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"", b""),
        (b"[]", b""),
        (b"nonsense", b""),
        (b"\xff\xff", b""),
        (b"[" * 100_000, b""),
        ({"a": 1}, b""),
        ({"a": entry()}, b""),
        ({"a": entry()}, b"12345"),
        ({"a": entry("F99")}, b"1234"),
        ({"a": entry(shape=[2])}, b"1234"),
        ({"a": entry(shape=[-1])}, b"1234"),
        ({"a": entry(shape=[1.0])}, b"1234"),
        ({"a": entry(shape=[True])}, b"1234"),
        ({"a": entry(shape=None)}, b"1234"),
        ({"a": entry(shape=[2**62, 2**62])}, b"1234"),
        ({"a": entry(shape=[1] * 9)}, b"1234"),
        ({"a": entry(offsets=[4, 0])}, b"1234"),
        ({"a": entry(offsets=[0])}, b"1234"),
        ({"a": entry(), "b": entry()}, b"1234"),
        ({"a": entry(offsets=[4, 8])}, b"12345678"),
        ({"a": entry(offsets=[0, 2**63])}, b"1234"),
    ],
)
def test_a_header_that_does_not_add_up_is_refused(tmp_path: Path, header: object, data: bytes) -> None:
    with pytest.raises(PackError):
        read_header(write(tmp_path / "x.safetensors", header, data))


@pytest.mark.parametrize("raw", [b"", b"1234", b"\x00" * 8, (10 * 2**30).to_bytes(8, "little") + b"{}", b"\xff" * 16])
def test_an_empty_short_or_boasting_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(raw)
    with pytest.raises(PackError):
        read_header(tmp_path / "x.safetensors")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "x.safetensors", {"a": entry(), "b": entry(offsets=[4, 8])}, b"12345678").read_bytes()
    read_header(tmp_path / "x.safetensors")
    for length in range(len(whole)):
        (tmp_path / "x.safetensors").write_bytes(whole[:length])
        with pytest.raises(PackError):
            read_header(tmp_path / "x.safetensors")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_to_the_header_reads_or_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(json.dumps({"a": entry(), "b": entry("I8", (2, 2), (4, 8)), "__metadata__": {"x": "y"}}).encode())
    whole = bytearray(len(raw).to_bytes(8, "little") + raw + b"12345678")
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "x.safetensors").write_bytes(bytes(whole))
    with contextlib.suppress(PackError):
        read_header(tmp_path / "x.safetensors")


def test_shards_and_one_file_hold_the_same_trunk(tmp_path: Path) -> None:
    one = read_trunk_tensors(write_tiny_pack(tmp_path / "one"))
    three = read_trunk_tensors(write_tiny_pack(tmp_path / "three", shards=3))
    assert set(one) == set(three)
    assert trunk_identity(one.values()) == trunk_identity(three.values())


def test_another_weight_is_another_trunk(tmp_path: Path) -> None:
    one = write_tiny_pack(tmp_path / "one")
    before = trunk_identity(read_trunk_tensors(one).values())
    raw = bytearray((one / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (one / "model.safetensors").write_bytes(bytes(raw))
    assert trunk_identity(read_trunk_tensors(one).values()) != before


def refused(folder: Path) -> str:
    with pytest.raises(PackError) as caught:
        read_trunk_tensors(folder)
    return str(caught.value)


def test_index_and_disk_are_compared_both_ways(tmp_path: Path) -> None:
    shard = "model-00002-of-00003.safetensors"
    missing = write_tiny_pack(tmp_path / "missing", shards=3)
    (missing / shard).unlink()
    assert shard in refused(missing)
    stray = write_tiny_pack(tmp_path / "stray", shards=3)
    (stray / "model.safetensors").write_bytes((stray / shard).read_bytes())
    assert "model.safetensors" in refused(stray)
    renamed = write_tiny_pack(tmp_path / "renamed", shards=3)
    (renamed / shard).rename(renamed / "weights.safetensors")
    assert shard in refused(renamed)
    no_index = write_tiny_pack(tmp_path / "no_index", shards=3)
    (no_index / INDEX).unlink()
    assert INDEX in refused(no_index)
    swapped = write_tiny_pack(tmp_path / "swapped", shards=3)
    (swapped / shard).write_bytes((swapped / "model-00001-of-00003.safetensors").read_bytes())
    refused(swapped)


@pytest.mark.parametrize(
    "change", [{}, {"weight_map": {}}, {"weight_map": {"a": "../x.safetensors"}}, {"weight_map": {"a": 3}}]
)
def test_an_index_that_is_no_map_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    pack = write_tiny_pack(tmp_path / "pack", shards=2)
    (pack / INDEX).write_text(json.dumps(change))
    refused(pack)


def test_a_tensor_that_only_the_index_has_is_refused(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "pack", shards=2)
    index = json.loads((pack / INDEX).read_text())
    index["weight_map"]["model.layers.9.extra"] = "model-00001-of-00002.safetensors"
    (pack / INDEX).write_text(json.dumps(index))
    assert "model.layers.9.extra" in refused(pack)


def test_the_head_file_is_never_part_of_the_trunk(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "pack", shards=2)
    index = json.loads((pack / INDEX).read_text())
    index["weight_map"]["norm.weight"] = "mtp.safetensors"
    (pack / INDEX).write_text(json.dumps(index))
    assert "norm.weight" not in read_trunk_tensors(pack)
    assert "norm.weight" in (read_head_tensors(pack) or {})


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    assert "none" in refused(tmp_path)
