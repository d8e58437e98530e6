"""Packs that are not what they say: each is refused or loses its head, in one sentence, whatever byte is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtrun.runtime.cli.main import main
from mtrun.runtime.cli.pack import pack as pack_command
from support import broken_packs as broken
from support.broken_packs import HEAD, INDEX, MANIFEST, TRUNK, raw, refused_with, sentence, told

NORM = "model.norm.weight"
DEEP = "[" * 100_000
Fault = Callable[[Path], Any]
FUZZED = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("base", [*broken.BASES, "nano"])
def test_the_packs_that_faults_are_put_into_are_whole(bases: dict[str, Path], base: str) -> None:
    found = broken.open_pack(bases[base])
    assert found.refused is None
    assert (found.head is None) == (base != "plain")


# -- weights ----------------------------------------------------------------------------------------------------------
def header(tensor: str, **changes: Any) -> Fault:
    return lambda folder: broken.set_header(broken.shard_of(folder, tensor), tensor, **changes)


def values(tensor: str, change: Callable[[np.ndarray], np.ndarray], head: bool = False) -> Fault:
    def fault(folder: Path) -> None:
        broken.set_values(folder / HEAD if head else broken.shard_of(folder, tensor), tensor, change)

    return fault


def one(number: float) -> Callable[[np.ndarray], np.ndarray]:
    """Sets a single value."""

    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array.reshape(-1)[array.size // 2] = number
        return array

    return change


def every_norm(shift: float, head: bool = False) -> Fault:
    def fault(folder: Path) -> None:
        for file in [folder / HEAD] if head else sorted(set(folder.glob("*.safetensors")) - {folder / HEAD}):
            for name in [name for name in broken.split(file)[0] if name.endswith("norm.weight")]:
                broken.set_values(file, name, lambda array: array + shift)

    return fault


def twice(folder: Path) -> None:
    """A tensor of one shard again in another one."""
    index = json.loads((folder / INDEX).read_text())["weight_map"]
    other = next(file for file in index.values() if file != index[NORM])
    broken.add_tensor(folder / other, NORM, "F32", [1], b"\0" * 4)


def lose_shard(folder: Path) -> None:
    broken.shard_of(folder, NORM).unlink()


def as_integers(folder: Path) -> None:
    """The bytes of a float tensor under the name of an integer type of the same width."""
    wide = broken.split(broken.shard_of(folder, NORM))[0][NORM]["dtype"] == "F32"
    broken.set_header(broken.shard_of(folder, NORM), NORM, dtype="U32" if wide else "U16")


def flat(folder: Path) -> None:
    file = broken.shard_of(folder, NORM)
    broken.set_header(file, NORM, shape=[1, *broken.split(file)[0][NORM]["shape"]])


WEIGHTS: dict[str, tuple[Fault, str]] = {
    "missing file": (lose_shard, "weights|shard|missing|needs"),
    "zero-length": (raw(TRUNK, lambda data: b""), "0 bytes"),
    "half": (raw(TRUNK, lambda data: data[: len(data) // 2]), "damaged or cut short"),
    "one byte more": (raw(TRUNK, lambda data: data + b"\0"), "no tensor owns"),
    "header of 2^60": (raw(TRUNK, lambda data: (2**60).to_bytes(8, "little") + data[8:]), "claims a header"),
    "header of nothing": (raw(TRUNK, lambda data: bytes(8) + data[8:]), "claims a header"),
    "no JSON": (raw(TRUNK, lambda data: data[:8] + b"[" + data[9:]), "not JSON|mapping"),
    "not UTF-8": (raw(TRUNK, lambda data: data[:8] + b"\xff" + data[9:]), "not JSON"),
    "wrong shape": (flat, "config.json implies"),
    "negative shape": (header(NORM, shape=[-32]), "whole numbers"),
    "huge shape": (header(NORM, shape=[2**62, 2**62]), "cut short"),
    "10 GB": (header(NORM, shape=[5 * 2**30], data_offsets=[0, 10 * 2**30]), "cut short"),
    "offsets swapped": (header(NORM, data_offsets=[128, 0]), "cut short"),
    "wrong dtype": (as_integers, "no floating type"),
    "unknown dtype": (header(NORM, dtype="F12"), "dtype must be one of"),
    "NaN": (values(NORM, one(float("nan"))), "NaN or infinity"),
    "infinity": (values(NORM, one(float("inf"))), "NaN or infinity"),
    "norms less one": (every_norm(-1.0), "stored less one"),
    "extra tensor": (
        lambda folder: broken.add_tensor(broken.shard_of(folder, NORM), "model.evil", "F32", [1], b"\0" * 4),
        "model.evil",
    ),
    "tensor gone": (lambda folder: broken.drop_tensor(broken.shard_of(folder, NORM), NORM), "model.norm.weight"),
    "name of two lines": (
        lambda folder: broken.add_tensor(broken.shard_of(folder, NORM), "a\nb", "F32", [1], b"\0" * 4),
        "no name of a tensor",
    ),
}


@pytest.mark.parametrize("fault", WEIGHTS)
@pytest.mark.parametrize("base", ["single", "sharded", "quantised", "nano"])
def test_weights_that_are_not_the_models_are_refused(
    bases: dict[str, Path], tmp_path: Path, base: str, fault: str
) -> None:
    folder = broken.copy(bases[base], tmp_path / "pack")
    action, words = WEIGHTS[fault]
    action(folder)
    refused_with(folder, ".")
    refused_with(broken.vouch(folder), words)


def test_a_tensor_in_two_shards_is_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    folder = broken.copy(bases["sharded"], tmp_path / "pack")
    twice(folder)
    refused_with(broken.vouch(folder), "lies in two shards|does not place")


def test_nan_in_the_scales_and_in_the_head_is_found(bases: dict[str, Path], tmp_path: Path) -> None:
    folder = broken.copy(bases["quantised"], tmp_path / "a")
    values("model.layers.0.mlp.up_proj.scales", one(float("nan")))(folder)
    refused_with(broken.vouch(folder), "up_proj.scales holds NaN")
    folder = broken.copy(bases["single"], tmp_path / "b")
    values("proj.weight", one(float("inf")), head=True)(folder)
    refused_with(broken.vouch(folder), "head's proj.weight holds NaN")
    folder = broken.copy(bases["single"], tmp_path / "c")
    every_norm(-1.0, head=True)(folder)
    refused_with(broken.vouch(folder), "head's norm weights")


# -- the head: optional, so the trunk serves without it ---------------------------------------------------------------
def of_head(**changes: Any) -> Fault:
    def fault(folder: Path) -> None:
        data = yaml.safe_load((folder / MANIFEST).read_text())
        broken.edit_yaml(folder / MANIFEST, head={**data["head"], **changes})

    return fault


HEADS: dict[str, tuple[Fault, str]] = {
    "foreign": (of_head(trunk_identity="f" * 64), "trained for the trunk ffffffffffff"),
    "two layers": (of_head(layers=2), "2 layers"),
    "other draft vocabulary": (of_head(draft_vocab_size=7), "draft_vocab_size 7"),
    "zero-length": (raw(HEAD, lambda data: b""), "0 bytes"),
    "half": (raw(HEAD, lambda data: data[: len(data) // 2]), "cut short"),
    "claims 10 GB": (lambda folder: broken.set_header(folder / HEAD, "norm.weight", shape=[5 * 2**29]), "cut short"),
    "text ids": (lambda folder: broken.set_header(folder / HEAD, "draft_ids", dtype="F32"), "int32 vector"),
    "gone": (lambda folder: (folder / HEAD).unlink(), "promises an MTP head"),
}


@pytest.mark.parametrize("fault", HEADS)
@pytest.mark.parametrize("base", ["single", "nano"])
def test_a_head_that_does_not_fit_is_declined_and_the_trunk_serves(
    bases: dict[str, Path], tmp_path: Path, base: str, fault: str
) -> None:
    folder = broken.copy(bases[base], tmp_path / "pack")
    action, words = HEADS[fault]
    action(folder)
    found = broken.open_pack(broken.vouch(folder))
    assert found.refused is None
    assert words in sentence(found.head)


# -- any byte, any value ----------------------------------------------------------------------------------------------
@FUZZED
@given(st.data())
def test_a_file_cut_at_any_byte_is_noticed(bases: dict[str, Path], tmp_path: Path, data: st.DataObject) -> None:
    base = data.draw(st.sampled_from(["single", "sharded", "quantised", "nano"]))
    folder = broken.copy(bases[base], tmp_path / "pack")
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".jinja")
    file = folder / data.draw(st.sampled_from(names))
    whole = file.read_bytes()
    cut = data.draw(
        st.one_of(st.integers(0, 64), st.integers(0, len(whole) - 2)).map(lambda at: min(at, len(whole) - 2))
    )
    file.write_bytes(whole[:cut])
    told(broken.open_pack(folder))
    if file.name not in (MANIFEST, "head.yaml", "card.yaml"):
        found = broken.open_pack(broken.vouch(folder))
        assert told(found)
        assert (found.refused is None) == (file.name == HEAD)


@FUZZED
@given(st.data())
def test_any_wrong_byte_is_a_sentence_or_a_model(bases: dict[str, Path], tmp_path: Path, data: st.DataObject) -> None:
    base = data.draw(st.sampled_from(["single", "sharded", "quantised"]))
    folder = broken.copy(bases[base], tmp_path / "pack")
    file = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = bytearray(file.read_bytes())
    for at in data.draw(st.lists(st.integers(0, min(len(content), 6000) - 1), min_size=1, max_size=4)):
        content[at] ^= data.draw(st.integers(1, 255))
    changed = bytes(content) != file.read_bytes()
    file.write_bytes(content)
    found = broken.open_pack(folder)
    if changed and file.name != MANIFEST:
        told(found)
    if file.name != MANIFEST:
        found = broken.open_pack(broken.vouch(folder))
    if not found.served_whole:
        told(found)


ODD = st.sampled_from(
    [None, True, 0, 1, -1, 3, 7, 64, 2**31, 2**63, 2**70, 10**400, 0.5, 1e308, float("nan"), float("inf"), "", "x",
     "a\nb", "\ud800", "../x", "/etc/passwd", "F64", "I32", "U32", [], {}, [1], [0, 2**40], {"a": 1}, ...]
)  # fmt: skip


@FUZZED
@given(st.data())
def test_any_value_anywhere_in_a_text_or_header_is_a_sentence_or_a_model(
    bases: dict[str, Path], tmp_path: Path, data: st.DataObject
) -> None:
    base = data.draw(st.sampled_from(["single", "sharded", "quantised", "plain"]))
    folder = broken.copy(bases[base], tmp_path / "pack")
    file = data.draw(st.sampled_from(sorted({*folder.glob("*.json"), *folder.glob("*.safetensors")})))
    packed = file.suffix == ".safetensors"
    value, rest = broken.split(file) if packed else (json.loads(file.read_text()), b"")
    place = data.draw(st.sampled_from(broken.places(value)))
    text = json.dumps(broken.replaced(value, place, data.draw(ODD))).encode("utf-8", "surrogatepass")
    if packed:
        broken.join(file, text, rest)
    else:
        file.write_bytes(text)
    found = broken.open_pack(broken.vouch(folder))
    if not found.served_whole:
        told(found)


# -- claimed sizes ----------------------------------------------------------------------------------------------------
def sparse(folder: Path) -> None:
    """A file that really is 10 GB long, of zeros that take no room."""
    file = folder / TRUNK
    head, data = broken.split(file)
    head["model.evil"] = {"dtype": "U8", "shape": [10 * 2**30], "data_offsets": [len(data), len(data) + 10 * 2**30]}
    broken.join(file, head, data)
    os.truncate(file, file.stat().st_size + 10 * 2**30)


def index_of_10_gb(folder: Path) -> None:
    names = [name for name in broken.split(folder / TRUNK)[0] if name != "__metadata__"]
    index = {"metadata": {"total_size": 10 * 2**30}, "weight_map": dict.fromkeys(names, TRUNK)}
    (folder / INDEX).write_text(json.dumps(index))


def far_token(folder: Path) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["vocab"]["b"] = 2**32 - 2
    (folder / "tokenizer.json").write_text(json.dumps(data))


CLAIMS: dict[str, tuple[Fault, bool]] = {  # fault, whether the pack still serves
    "header": (raw(TRUNK, lambda data: (10 * 2**30).to_bytes(8, "little") + data[8:]), False),
    "tensor": (header(NORM, shape=[5 * 2**30], data_offsets=[0, 10 * 2**30]), False),
    "sparse file": (sparse, False),
    "vocabulary": (lambda folder: broken.edit_json(folder / "config.json", vocab_size=2**24), False),
    "width": (lambda folder: broken.edit_json(folder / "config.json", hidden_size=2**20), False),
    "feed-forward": (lambda folder: broken.edit_json(folder / "config.json", intermediate_size=2**24), False),
    "token id": (far_token, False),
    "template": (
        lambda folder: (folder / "chat_template.jinja").write_text("{{ 'x' * 10**10 }}{{ 'x'|center(2000000000) }}"),
        True,
    ),
    "index": (index_of_10_gb, True),
}
CHILD = """
import json, resource, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from support.broken_packs import open_pack
open_pack(Path(sys.argv[2]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + 4 * 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
found = {path.name: open_pack(path).refused for path in sorted(Path(sys.argv[3]).iterdir())}
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"found": found, "grown": grown * 1024}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited by RLIMIT_AS there")
def test_a_claimed_size_is_never_allocated(bases: dict[str, Path], tmp_path: Path) -> None:
    """One process with 4 GiB to spare opens them all; what it holds at its peak grows by a hundredth of a claim."""
    for name, (fault, _) in CLAIMS.items():
        folder = broken.copy(bases["plain"], tmp_path / "claims" / name)
        fault(folder)
    words = (sys.executable, "-c", CHILD, Path(broken.__file__).parents[1], bases["plain"], tmp_path / "claims")
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told_of = json.loads(done.stdout.splitlines()[-1])
    assert {name: text is None for name, text in told_of["found"].items()} == {n: ok for n, (_, ok) in CLAIMS.items()}
    for text in filter(None, told_of["found"].values()):
        sentence(text)
    assert told_of["grown"] < 100 * 2**20


# -- through the front door -------------------------------------------------------------------------------------------
DOORS: dict[str, tuple[Fault, str]] = {
    "cut weights": (WEIGHTS["half"][0], "cut short"),
    "header of 2^60": (WEIGHTS["header of 2^60"][0], "claims a header"),
    "unknown key": (lambda folder: broken.edit_yaml(folder / MANIFEST, licens="MIT"), "unknown key"),
    "path out": (lambda folder: broken.edit_yaml(folder / MANIFEST, files={"../x": {}}), "plain path"),
    "deep config": (lambda folder: (folder / "config.json").write_text(DEEP), "not valid JSON"),
}


def door(bases: dict[str, Path], folder: Path, fault: Fault) -> Path:
    """A faulty pack behind fresh checksums, where it has files to make them of."""
    fault(broken.copy(bases["single"], folder))
    listed = yaml.safe_load((folder / MANIFEST).read_text())["files"]
    return folder if any(name.startswith("..") for name in listed) else broken.vouch(folder)


@pytest.mark.parametrize("fault", DOORS)
def test_pack_verify_and_inspect_end_with_2_and_one_sentence(
    bases: dict[str, Path], tmp_path: Path, fault: str
) -> None:
    folder = door(bases, tmp_path / "pack", DOORS[fault][0])
    for command in ("verify", "inspect"):
        done = CliRunner().invoke(pack_command, [command, str(folder)])
        assert done.exit_code == 2
        assert done.stdout == ""
        assert DOORS[fault][1] in sentence(done.stderr.strip())


@pytest.mark.parametrize("fault", [*DOORS, "NaN", "norms less one"])
def test_audit_ends_with_2_and_one_sentence(
    bases: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    action, words = DOORS[fault] if fault in DOORS else WEIGHTS[fault]
    folder = door(bases, tmp_path / "pack", action)
    assert main(["audit", f"pack={folder}", "lanes.cpu_blas=false"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in sentence(captured.err.strip())


@pytest.mark.parametrize("fault", ["NaN", "wrong shape", "wrong dtype", "extra tensor"])
def test_the_whole_start_up_refuses_as_loading_does(bases: dict[str, Path], tmp_path: Path, fault: str) -> None:
    folder = broken.copy(bases["quantised"], tmp_path / "pack")
    WEIGHTS[fault][0](folder)
    broken.vouch(folder)
    assert broken.start(folder).refused == sentence(broken.open_pack(folder).refused)


def test_the_whole_start_up_declines_a_foreign_head(bases: dict[str, Path], tmp_path: Path) -> None:
    folder = broken.copy(bases["nano"], tmp_path / "pack")
    HEADS["foreign"][0](folder)
    found = broken.start(folder)
    assert found.refused is None
    assert HEADS["foreign"][1] in sentence(found.head)
