"""A pack described without its weights: family, head and defaults, and packs that are not what they say."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.inspect import inspect, verify
from mtrun.runtime.packs.reader import describe
from support.tiny_pack import write_tiny_pack


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def plain(folder: Path, **options: Any) -> Path:
    return write_tiny_pack(folder, manifest=False, **options)


def test_a_whole_pack_is_described(tmp_path: Path) -> None:
    found = describe(write_tiny_pack(tmp_path / "pack", draft_vocab=64))
    assert (found.name, found.family, found.layers, found.hidden_size) == ("tiny", "llama", 2, 32)
    assert found.head.ok
    assert found.draft_vocab_size == 64
    assert found.eos_ids == (2,)
    assert found.context_length == 512
    assert found.quantized_bits is None
    assert found.sampler.top_k == 20
    assert found.facts == ()
    stored = sum(info.nbytes for info in (*found.trunk.values(), *found.head_tensors.values()))
    assert found.float32_bytes == stored


def test_quantisation_is_told_and_counted_as_dense_in_the_estimate(tmp_path: Path) -> None:
    dense = describe(write_tiny_pack(tmp_path / "dense", hidden=64))
    found = describe(write_tiny_pack(tmp_path / "quantized", hidden=64, quantized=True))
    assert found.quantized_bits == 4
    assert found.quantization["model.layers.0.self_attn.q_proj"].group_size == 32
    assert found.head_quantization["proj"].bits == 8
    assert found.float32_bytes == dense.float32_bytes


def test_the_family_is_the_configs_not_the_folders(tmp_path: Path) -> None:
    assert describe(plain(tmp_path / "mistral-7b")).family == "llama"


def test_a_plain_folder_serves_without_a_head_and_says_why(tmp_path: Path) -> None:
    found = describe(plain(tmp_path / "pack"))
    assert found.name == "pack"
    assert found.head.code == "unknown_wiring"
    assert found.head_tensors == {}
    assert "checksums" in found.facts[0]
    assert found.sampler.top_p == 0.95


def test_no_head_and_a_promised_head_that_is_gone_are_told_apart(tmp_path: Path) -> None:
    assert describe(plain(tmp_path / "a", head=False)).head.code == "no_head"
    pack = plain(tmp_path / "b", head=False)
    edit_json(pack / "config.json", num_nextn_predict_layers=1)
    assert describe(pack).head.code == "head_missing"


def test_a_head_of_another_trunk_is_declined_with_both_names(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "pack")
    data = yaml.safe_load((pack / "pack.yaml").read_text())
    data["head"]["trunk_identity"] = "f" * 64
    (pack / "pack.yaml").write_text(yaml.safe_dump(data))
    found = describe(pack)
    assert found.head.code == "foreign_head"
    assert "ffffffffffff" in found.head.reason
    assert data["trunk_identity"][:12] in found.head.reason
    assert found.wiring is None


@pytest.mark.parametrize("promised", [None, 63])
def test_a_draft_vocabulary_other_than_promised_declines_the_head(tmp_path: Path, promised: int | None) -> None:
    pack = write_tiny_pack(tmp_path / "pack", draft_vocab=64)
    data = yaml.safe_load((pack / "pack.yaml").read_text())
    data["head"]["draft_vocab_size"] = promised
    (pack / "pack.yaml").write_text(yaml.safe_dump(data))
    assert describe(pack).head.code == "damaged_head"


@pytest.mark.parametrize("key", ["auto_map", "model_file"])
def test_code_in_a_pack_is_refused_and_not_run(tmp_path: Path, key: str) -> None:
    pack = plain(tmp_path / "pack")
    marker = tmp_path / "marker"
    (pack / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    edit_json(pack / "config.json", **{key: {"AutoModel": "evil.Model"} if key == "auto_map" else "evil.py"})
    with pytest.raises(PackError, match=key):
        describe(pack)
    assert not marker.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": None},
        {"model_type": 3},
        {"vocab_size": "320"},
        {"vocab_size": None},
        {"hidden_size": -1},
        {"max_position_embeddings": None},
        {"quantization_config": {"quant_method": "fp8"}},
        {"quantization": {"bits": 4}},
        {"quantization": {"bits": 7, "group_size": 32}},
        {"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}},
        {"quantization": 4},
    ],
)
def test_a_config_that_cannot_be_honoured_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    pack = plain(tmp_path / "pack")
    edit_json(pack / "config.json", **changes)
    with pytest.raises(PackError) as caught:
        describe(pack)
    assert "\n" not in str(caught.value)


def test_quantised_weights_without_figures_or_with_wrong_ones_are_refused(tmp_path: Path) -> None:
    pack = plain(tmp_path / "pack", hidden=64, quantized=True)
    config = json.loads((pack / "config.json").read_text())
    edit_json(pack / "config.json", quantization={"bits": 8, "group_size": 32})
    with pytest.raises(PackError, match="8 bits"):
        describe(pack)
    del config["quantization"]
    (pack / "config.json").write_text(json.dumps(config))
    with pytest.raises(PackError, match="quantization"):
        describe(pack)


@pytest.mark.parametrize("text", ["", "{", "[]", "nul", "[" * 100_000, '{"a": NaN', "\x00"])
def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    pack = plain(tmp_path / "pack")
    (pack / "config.json").write_text(text)
    with pytest.raises(PackError):
        describe(pack)


@pytest.mark.parametrize(("eos", "wanted"), [([2, 0, 2], (2, 0)), (5, (5,))])
def test_generation_config_names_the_end_of_a_reply(tmp_path: Path, eos: object, wanted: tuple[int, ...]) -> None:
    pack = plain(tmp_path / "pack")
    edit_json(pack / "generation_config.json", eos_token_id=eos)
    assert describe(pack).eos_ids == wanted


@pytest.mark.parametrize("eos", [[], [-1], "2", [True], {}])
def test_an_end_that_is_no_token_id_is_refused(tmp_path: Path, eos: object) -> None:
    pack = plain(tmp_path / "pack")
    edit_json(pack / "generation_config.json", eos_token_id=eos)
    with pytest.raises(PackError, match="eos_token_id"):
        describe(pack)


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="not a folder"):
        describe(tmp_path / "nowhere")


def test_a_hub_snapshot_of_links_into_its_blobs_is_read(tmp_path: Path) -> None:
    made = plain(tmp_path / "made")
    snapshot, blobs = tmp_path / "models--o--n" / "snapshots" / "abc", tmp_path / "models--o--n" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(made.iterdir()):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert describe(snapshot).family == "llama"


def test_inspect_is_plain_json_and_verify_finds_every_difference(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "pack", draft_vocab=16)
    facts = json.loads(json.dumps(inspect(describe(pack))))
    assert facts["head"]["fits"] is True
    assert facts["head"]["draft_vocab_size"] == 16
    assert verify(pack) == []
    raw = bytearray((pack / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (pack / "model.safetensors").write_bytes(bytes(raw))
    (pack / "extra.txt").write_text("x")
    assert [line.split()[0] for line in verify(pack)] == ["extra.txt", "model.safetensors", "the"]


def test_a_plain_folder_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"pack\.yaml"):
        verify(plain(tmp_path / "pack"))
