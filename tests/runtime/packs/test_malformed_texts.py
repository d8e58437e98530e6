"""Texts, indexes, manifests, links and cards that are not what they should be: one sentence each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs import heads
from support import broken_packs as broken
from support.broken_packs import HEAD, INDEX, MANIFEST, TRUNK, raw, refused_with, sentence, told

NORM, EMBEDDING = "model.norm.weight", "model.embed_tokens.weight"
DEEP = "[" * 100_000
CONFIG: dict[str, tuple[dict[str, Any], str]] = {
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads"),
    "heads that do not divide": ({"num_attention_heads": 3}, "must divide"),
    "odd width": ({"head_dim": 7}, "must be even"),
    "huge head": ({"head_dim": 2**31}, "head_dim"),
    "text for a size": ({"intermediate_size": "64"}, "intermediate_size"),
    "negative size": ({"num_key_value_heads": -1}, "num_key_value_heads"),
    "huge integer": ({"hidden_size": 10**4000}, "a number of 13,288 bits"),
    "other width": ({"hidden_size": 64, "head_dim": 8}, "config.json implies"),
    "other layers": ({"num_hidden_layers": 3}, "weights hold 2"),
    "4096 layers": ({"num_hidden_layers": 4096}, "weights hold 2"),
    "no theta": ({"rope_theta": None}, "rope_theta"),
    "negative theta": ({"rope_theta": -1}, "rope_theta"),
    "theta elsewhere": ({"rope_theta": ..., "rope_parameters": {"rope_theta": 5e5}}, "rope_parameters is not read"),
    "flag as text": ({"tie_word_embeddings": "false"}, "true or false"),
    "other activation": ({"hidden_act": "gelu"}, "'gelu' is not computed"),
    "scaling of no kind": ({"rope_scaling": {"type": "x", "factor": 2}}, "Unsupported RoPE"),
    "scaling without factor": ({"rope_scaling": {"type": "linear"}}, "factor"),
    "scaling by zero": ({"rope_scaling": {"type": "linear", "factor": 0}}, "above zero"),
    "scaling by text": ({"rope_scaling": {"rope_type": "llama3", "factor": "x"}}, "no llama model"),
    "scaling as list": ({"rope_scaling": [1]}, "mapping"),
    "layer types": ({"layer_types": ["full_attention"]}, "layer_types"),
    "sliding without window": ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
    "family of two lines": ({"model_type": "llama\nx"}, "no name of a family"),
    "another family": ({"model_type": "mamba"}, "they must agree"),
    "context of 2^31": ({"max_position_embeddings": 2**31}, "max_position_embeddings"),
    "wrong tokenizer": ({"vocab_size": 300}, "belong to different models|config.json implies"),
    "code": ({"auto_map": {"AutoModel": "evil.Model"}}, "never does"),
    "epsilon": ({"rms_norm_eps": None}, "rms_norm_eps"),
}


@pytest.mark.parametrize("fault", CONFIG)
def test_a_config_that_no_such_model_has_is_refused(bases: dict[str, Path], tmp_path: Path, fault: str) -> None:
    folder = broken.copy(bases["single"], tmp_path / "pack")
    changes, words = CONFIG[fault]
    broken.edit_json(folder / "config.json", **changes)
    assert not broken.open_pack(folder).served_whole
    refused_with(broken.vouch(folder), words)


def test_a_width_that_leaves_heads_nothing_is_refused_before_the_heads_shapes_are_read(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    folder = broken.copy(bases["quantised"], tmp_path / "pack")
    broken.edit_json(folder / "config.json", hidden_size=2)
    refused_with(broken.vouch(folder), "must divide")


def test_a_stored_projection_that_the_config_is_silent_about_is_refused(tmp_path: Path) -> None:
    folder = broken.write_base(tmp_path / "pack", "quantised-sharded")
    broken.edit_json(folder / "config.json", tie_word_embeddings=...)
    refused_with(broken.vouch(folder), "tie_word_embeddings")


TEXTS: dict[str, tuple[str, bytes, str]] = {
    "config: nothing": ("config.json", b"", "not valid JSON"),
    "config: deep": ("config.json", DEEP.encode(), "not valid JSON"),
    "config: not UTF-8": ("config.json", b'{"a": "\xff"}', "not UTF-8"),
    "config: a list": ("config.json", b"[1, 2]", "must be a mapping"),
    "config: twice": (
        "config.json",
        b'{"model_type": "llama", "model_type": "llama"}',
        "'model_type' stands there twice",
    ),
    "config: long number": ("config.json", b'{"hidden_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
    "config: 20 MB": ("config.json", b" " * (20 * 2**20), "larger than"),
    "generation: text": ("generation_config.json", b'"x"', "must be a mapping"),
    "generation: ends": ("generation_config.json", b'{"eos_token_id": -1}', "eos_token_id"),
    "generation: far end": ("generation_config.json", b'{"eos_token_id": 4000000}', "exceeds vocab_size"),
    "tokenizer: nothing": ("tokenizer.json", b"", "not a tokenizer"),
    "tokenizer: deep": ("tokenizer.json", DEEP.encode(), "not a tokenizer"),
    "tokenizer: half": ("tokenizer.json", b'{"version": "1.0", "model": {"type": "BPE", "vo', "not a tokenizer"),
    "tokenizer config: list": ("tokenizer_config.json", b"[]", "must be a mapping"),
    "template: open": ("chat_template.jinja", b"{% for %}", "not valid Jinja"),
    "template: 50 loops": ("chat_template.jinja", b"{% for a in b %}" * 50 + b"{% endfor %}" * 50, "not valid Jinja"),
    "template: deep": ("chat_template.jinja", b"{{" + b"(" * 5000, "not valid Jinja"),
    "template: folded": ("chat_template.jinja", b"{% autoescape 9**9**9**9 %}{% endautoescape %}", "autoescape"),
}


@pytest.mark.parametrize("fault", TEXTS)
def test_a_text_that_cannot_be_read_is_refused(bases: dict[str, Path], tmp_path: Path, fault: str) -> None:
    folder = broken.copy(bases["single"], tmp_path / "pack")
    name, content, words = TEXTS[fault]
    (folder / name).write_bytes(content)
    told(broken.open_pack(folder))
    refused_with(broken.vouch(folder), words)


def test_a_tokenizer_of_another_model_is_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    folder = broken.copy(bases["single"], tmp_path / "pack")
    (folder / "tokenizer.json").write_bytes((bases["nano"] / "tokenizer.json").read_bytes())
    refused_with(folder, "bytes")
    refused_with(broken.vouch(folder), "belong to different models")


def test_two_tokens_of_one_id_are_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    folder = broken.copy(bases["single"], tmp_path / "pack")
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["vocab"]["a"] = data["model"]["vocab"]["b"]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    refused_with(broken.vouch(folder), "two tokens one id|not a tokenizer")


def test_a_text_of_the_same_size_is_found_by_its_checksum(bases: dict[str, Path], tmp_path: Path) -> None:
    """10000 and 20000 as rope_theta both make a model that answers; only one of them is this pack's."""
    folder = broken.copy(bases["single"], tmp_path / "pack")
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("10000.0", "20000.0"))
    refused_with(folder, "checksum")


INDEXES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no map": (lambda index: index.pop("weight_map"), "weight_map"),
    "empty map": (lambda index: index.update(weight_map={}), "names no tensor"),
    "out of the folder": (lambda index: index["weight_map"].update({NORM: "../x.safetensors"}), "plain path"),
    "absolute": (lambda index: index["weight_map"].update({NORM: "/etc/passwd"}), "plain path"),
    "number": (lambda index: index["weight_map"].update({NORM: 3}), "must be a non-empty text"),
    "missing shard": (lambda index: index["weight_map"].update({NORM: "model-9.safetensors"}), "lacks"),
    "wrong shard": (
        lambda index: index["weight_map"].update({NORM: index["weight_map"][EMBEDDING]}),
        "does not place there|lies in two",
    ),
    "long name": (lambda index: index["weight_map"].update({NORM: "x" * 5000}), "plain path"),
    "tensor of two lines": (lambda index: index["weight_map"].update({"a\nb": "x"}), "no name of a tensor"),
    "tensor that is nowhere": (
        lambda index: index["weight_map"].update({"x": index["weight_map"][NORM]}),
        "no shard holds",
    ),
}


@pytest.mark.parametrize("fault", INDEXES)
def test_an_index_that_differs_from_the_shards_is_refused(bases: dict[str, Path], tmp_path: Path, fault: str) -> None:
    folder = broken.copy(bases["sharded"], tmp_path / "pack")
    change, words = INDEXES[fault]
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))
    refused_with(broken.vouch(folder), words)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", TRUNK, HEAD, MANIFEST, "chat_template.jinja"])
def test_a_link_out_of_the_folder_is_not_followed(bases: dict[str, Path], tmp_path: Path, name: str) -> None:
    folder = broken.copy(bases["single"], tmp_path / "pack")
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    assert "leaves" in told(broken.open_pack(folder))
    if name != MANIFEST:
        (folder / MANIFEST).unlink()
        assert not broken.open_pack(folder).served_whole


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
def test_what_is_no_regular_file_is_not_opened(bases: dict[str, Path], tmp_path: Path, kind: str) -> None:
    folder = broken.copy(bases["plain"], tmp_path / "pack")
    path = folder / "config.json"
    path.unlink()
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "loop": lambda: path.symlink_to(path)}[kind]()
    refused_with(folder, "not a regular file|missing")


MANIFESTS: dict[str, tuple[str, str]] = {
    "unknown key": ("licens: MIT\n", "unknown key 'licens'"),
    "twice": ("name: other\n", "'name' stands there twice"),
    "path out": ("files:\n  ../x: {sha256: a, bytes: 1}\n", "twice|plain path"),
    "huge version": ("min_engine_version: 0x" + "f" * 20_000 + "\n", "min_engine_version"),
    "no boolean": ("min_engine_version: !!bool maybe\n", "not valid YAML"),
    "empty number": ("min_engine_version: !!int ''\n", "not valid YAML"),
    "object": ("min_engine_version: !!python/object/apply:os.system [true]\n", "not valid YAML"),
    "flood": ("".join(f"x{i}: 1\n" for i in range(60_000)), "larger than"),
    "deep": ("x: " + "[" * 2_000 + "\n", "not valid YAML"),
}


@pytest.mark.parametrize("fault", MANIFESTS)
def test_a_manifest_with_a_line_too_many_is_refused(bases: dict[str, Path], tmp_path: Path, fault: str) -> None:
    folder = broken.copy(bases["single"], tmp_path / "pack")
    line, words = MANIFESTS[fault]
    with (folder / MANIFEST).open("a") as file:
        file.write(line)
    refused_with(folder, words)


def test_an_unlisted_template_is_refused_and_an_unlisted_note_is_told(bases: dict[str, Path], tmp_path: Path) -> None:
    """What decides the model's input is vouched for; other files are none of the pack's business."""
    folder = broken.copy(bases["single"], tmp_path / "pack")
    (folder / "notes.txt").write_text("x")
    assert broken.open_pack(folder).served_whole
    data = yaml.safe_load((folder / MANIFEST).read_text())
    data["files"].pop("chat_template.jinja")
    broken.edit_yaml(folder / MANIFEST, files=data["files"])
    refused_with(folder, "lists no checksum for chat_template.jinja")


# -- a head's card ----------------------------------------------------------------------------------------------------
CARDS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "unknown key": (lambda folder: broken.edit_yaml(folder / "head.yaml", licens="MIT"), "unknown key"),
    "other file": (raw(HEAD, lambda data: data[:-1] + b"\x7f"), "not the file that its head.yaml describes"),
    "no card": (lambda folder: (folder / "head.yaml").unlink(), "head.yaml is missing"),
    "no head": (lambda folder: (folder / HEAD).unlink(), "mtp.safetensors is missing"),
    "no mapping": (lambda folder: (folder / "head.yaml").write_text("- 1"), "mapping"),
    "garbled": (lambda folder: (folder / "head.yaml").write_bytes(b"\x00\xff"), "UTF-8"),
    "huge depth": (lambda folder: broken.edit_yaml(folder / "head.yaml", max_depth=2**70), "max_depth"),
}


@pytest.mark.parametrize("fault", CARDS)
def test_a_head_that_ships_with_mtrun_has_to_match_its_card(tmp_path: Path, fault: str) -> None:
    folder = broken.copy(heads.heads_folder() / "smollm2-135m", tmp_path / "head")
    assert heads.committed_head(folder) is not None
    change, words = CARDS[fault]
    change(folder)
    with pytest.raises(PackError, match=words) as caught:
        heads.committed_head(folder)
    sentence(str(caught.value))
