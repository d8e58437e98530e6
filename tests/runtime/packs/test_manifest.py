"""pack.yaml: what is refused, in one sentence, and what comes back as it was written."""

import contextlib
import random
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.manifest import HeadEntry, HeadWiring, SamplerDefaults, read_manifest, write_manifest
from support.tiny_pack import write_tiny_pack


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_pack(tmp_path_factory.mktemp("pack"), draft_vocab=32)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return write_tiny_pack(tmp_path / "pack", draft_vocab=32)


def edit(pack: Path, **changes: object) -> None:
    data = yaml.safe_load((pack / "pack.yaml").read_text())
    (pack / "pack.yaml").write_text(yaml.safe_dump({**data, **changes}))


def sentence(pack: Path) -> str:
    with pytest.raises(PackError) as caught:
        read_manifest(pack)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_a_manifest_comes_back_as_it_was_written(original: Path) -> None:
    manifest = read_manifest(original)
    assert manifest.name == "tiny"
    assert manifest.head == HeadEntry(HeadWiring(max_depth=8), manifest.trunk_identity, 32)
    assert manifest.sampler == SamplerDefaults(temperature=1.0, top_p=0.95, top_k=20)
    before = (original / "pack.yaml").read_bytes()
    write_manifest(original, manifest)
    assert (original / "pack.yaml").read_bytes() == before


def test_an_unknown_key_is_refused_with_the_nearest_name(pack: Path) -> None:
    edit(pack, licens="MIT")
    assert "'licens'" in (text := sentence(pack))
    assert "'licence'" in text


def test_an_unknown_head_key_is_refused(pack: Path) -> None:
    data = yaml.safe_load((pack / "pack.yaml").read_text())
    edit(pack, head={**data["head"], "concatenate": "e_h"})
    assert "'concat'" in sentence(pack)


@pytest.mark.parametrize(("key", "value"), [("concat", "e_h"), ("hidden", "pre_norm"), ("chain", "raw"), ("layers", 0)])
def test_a_wiring_that_this_engine_does_not_know_is_refused(pack: Path, key: str, value: object) -> None:
    data = yaml.safe_load((pack / "pack.yaml").read_text())
    edit(pack, head={**data["head"], key: value})
    assert key in sentence(pack)


@pytest.mark.parametrize(
    "name", ["../config.json", "/etc/passwd", "a/../../x", "./config.json", "a\\b", "", "C:/x", "a//b"]
)
def test_a_path_that_leaves_the_folder_is_refused(pack: Path, name: str) -> None:
    edit(pack, files={name: {"sha256": "0" * 64, "bytes": 1}})
    assert "plain path inside" in sentence(pack)


def test_a_link_that_leaves_the_folder_is_refused(pack: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_bytes((pack / "config.json").read_bytes())
    (pack / "config.json").unlink()
    (pack / "config.json").symlink_to(outside)
    assert "leaves" in sentence(pack)


def test_a_link_loop_is_refused(pack: Path) -> None:
    (pack / "config.json").unlink()
    (pack / "config.json").symlink_to("config.json")
    assert "missing" in sentence(pack)


def test_a_size_that_differs_is_refused_with_both_figures(pack: Path) -> None:
    with (pack / "model.safetensors").open("ab") as file:
        file.write(b"x")
    assert "model.safetensors" in (text := sentence(pack))
    assert "bytes" in text


def test_a_newer_engine_is_asked_for_before_anything_else_is_read(pack: Path) -> None:
    edit(pack, min_engine_version=99, keys_of_that_version=1)
    assert "mtrun 99" in (text := sentence(pack))
    assert "pip install -U" in text


@pytest.mark.parametrize("version", ["0.0.1", "0.1", 0])
def test_an_older_engine_requirement_passes(pack: Path, version: object) -> None:
    edit(pack, min_engine_version=version)
    assert read_manifest(pack).min_engine_version == str(version)


@pytest.mark.parametrize("version", ["new", [1], True, "1.2.3.4.5"])
def test_a_version_that_is_none_is_refused(pack: Path, version: object) -> None:
    edit(pack, min_engine_version=version)
    assert "min_engine_version" in sentence(pack)


@pytest.mark.parametrize(
    "changes",
    [
        {"format_version": 2},
        {"format_version": "one"},
        {"name": "../x"},
        {"name": ""},
        {"trunk_identity": "abc"},
        {"trunk_identity": 7},
        {"files": ["config.json"]},
        {"files": {"config.json": {"sha256": "0" * 64, "bytes": -1}}},
        {"files": {"config.json": {"sha256": "0" * 64, "bytes": True}}},
        {"sampler": {"temperature": float("nan")}},
        {"sampler": {"top_p": 2}},
        {"sampler": {"top_k": 1.5}},
        {"provenance": {"source": ["x"]}},
        {"licence": None},
        {"head": "yes"},
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(pack: Path, changes: dict[str, object]) -> None:
    edit(pack, **changes)
    sentence(pack)


@pytest.mark.parametrize(
    "text", ["", "- a\n", "a: [", "a: b: c", "\t", "!!python/object:os.system {}", "[" * 1500, "1: 2"]
)
def test_a_file_that_is_no_mapping_is_refused(pack: Path, text: str) -> None:
    (pack / "pack.yaml").write_text(text)
    sentence(pack)


def test_a_manifest_that_is_not_text_is_refused(pack: Path) -> None:
    (pack / "pack.yaml").write_bytes(b"\xff\xfe\x00name: x")
    sentence(pack)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), value=json_like)
def test_any_value_anywhere_reads_or_is_refused(original: Path, tmp_path: Path, seed: int, value: object) -> None:
    data = yaml.safe_load((original / "pack.yaml").read_text())
    place, rng = data, random.Random(seed)
    while isinstance(inner := place[key := rng.choice(list(place))], dict) and inner and rng.random() < 0.7:
        place = inner
    place[key] = value
    folder = tmp_path / "fuzzed"
    if not folder.exists():
        folder.mkdir()
        for file in original.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    (folder / "pack.yaml").write_text(yaml.safe_dump(data))
    with contextlib.suppress(PackError):
        read_manifest(folder)
