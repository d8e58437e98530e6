"""Strict loading: exactly the expected tensors, finite, dequantised to what MLX itself computes."""

import threading
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import yaml
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.identity import file_entries
from mtrun.runtime.packs.reader import PackDescription, describe
from mtrun.runtime.packs.weights import load_head_weights, load_trunk_weights
from support.tiny_pack import write_tiny_pack

Shapes = dict[str, tuple[int, ...]]


def trunk_shapes(description: PackDescription) -> Shapes:
    model = llama.Model(llama.ModelArgs.from_dict(description.config))
    return {name: tuple(value.shape) for name, value in tree_flatten(model.parameters())}


def head_shapes(description: PackDescription) -> Shapes:
    block = llama.TransformerBlock(llama.ModelArgs.from_dict(description.config))
    width = description.hidden_size
    own: Shapes = {f"{name}.weight": (width,) for name in ("hidden_norm", "embed_norm", "norm")}
    layer = {f"layer.{name}": tuple(value.shape) for name, value in tree_flatten(block.parameters())}
    return own | {"proj.weight": (width, 2 * width)} | layer


def rewrite(pack: Path, file: str, change: Any) -> PackDescription:
    """Save `file` again after `change(arrays)`, with a manifest that lists the changed file."""
    arrays = mx.load(str(pack / file))
    assert isinstance(arrays, dict)
    mx.eval(arrays)
    change(arrays)
    (pack / file).unlink()
    mx.save_safetensors(str(pack / file), arrays)
    manifest = yaml.safe_load((pack / "pack.yaml").read_text())
    manifest["files"] = {name: dict(vars(entry)) for name, entry in file_entries(pack).items()}
    (pack / "pack.yaml").write_text(yaml.safe_dump(manifest))
    return describe(pack)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_dense_weights_load_exactly(tmp_path: Path, shards: int, tied: bool) -> None:
    found = describe(write_tiny_pack(tmp_path / "pack", shards=shards, tied=tied))
    expected = trunk_shapes(found)
    weights = load_trunk_weights(found, expected)
    assert {name: array.shape for name, array in weights.items()} == expected
    assert all(array.dtype == mx.float32 for array in weights.values())


def test_dequantised_weights_are_mlx_own(tmp_path: Path) -> None:
    found = describe(write_tiny_pack(tmp_path / "pack", hidden=64, quantized=True))
    weights = load_trunk_weights(found, trunk_shapes(found))
    stored = mx.load(str(found.folder / "model.safetensors"))
    assert isinstance(stored, dict)
    name = "model.layers.1.mlp.down_proj"
    parts = [stored[f"{name}.{part}"] for part in ("weight", "scales", "biases")]
    assert mx.array_equal(weights[f"{name}.weight"], mx.dequantize(*parts, group_size=32, bits=4))


def test_triples_are_kept_when_asked(tmp_path: Path) -> None:
    found = describe(write_tiny_pack(tmp_path / "pack", hidden=64, quantized=True))
    weights = load_trunk_weights(found, trunk_shapes(found), dequantize=False)
    assert weights["model.layers.0.self_attn.q_proj.weight"].dtype == mx.uint32
    assert "model.layers.0.self_attn.q_proj.biases" in weights
    assert set(weights) == set(found.trunk)


@pytest.mark.parametrize("quantized", [False, True])
def test_the_head_loads_with_its_draft_vocabulary(tmp_path: Path, quantized: bool) -> None:
    dense = describe(write_tiny_pack(tmp_path / "dense", hidden=64, draft_vocab=48))
    found = describe(write_tiny_pack(tmp_path / "pack", hidden=64, draft_vocab=48, quantized=quantized))
    weights = load_head_weights(found, head_shapes(found))
    reference = load_head_weights(dense, head_shapes(dense))
    assert weights["draft_ids"].tolist() == list(range(48))
    for name, shape in head_shapes(found).items():
        assert weights[name].shape == shape
        assert mx.max(mx.abs(weights[name] - reference[name])).item() < 0.01


def test_a_head_that_does_not_fit_is_not_loaded(tmp_path: Path) -> None:
    found = describe(write_tiny_pack(tmp_path / "pack", head=False))
    with pytest.raises(PackError, match="no MTP head"):
        load_head_weights(found, {})


CHANGES: dict[str, tuple[Any, str]] = {
    "missing": (lambda a: a.pop("model.norm.weight"), r"lacks model\.norm\.weight"),
    "extra": (lambda a: a.update({"model.layers.0.evil": mx.zeros((2,))}), r"holds model\.layers\.0\.evil"),
    "shape": (lambda a: a.update({"model.norm.weight": mx.zeros((31,))}), r"\[31\] where config\.json implies \[32\]"),
    "nan": (lambda a: a.update({"model.norm.weight": mx.full((32,), float("nan"))}), "NaN or infinity"),
    "inf": (lambda a: a.update({"model.norm.weight": mx.full((32,), float("inf"))}), "NaN or infinity"),
    "integers": (lambda a: a.update({"model.norm.weight": mx.zeros((32,), dtype=mx.int32)}), "no floating type"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_are_not_the_familys_are_refused(tmp_path: Path, change: str) -> None:
    action, words = CHANGES[change]
    pack = write_tiny_pack(tmp_path / "pack")
    expected = trunk_shapes(describe(pack))
    found = rewrite(pack, "model.safetensors", action)
    with pytest.raises(PackError, match=words):
        load_trunk_weights(found, expected)


def test_a_known_leftover_can_be_ignored(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "pack")
    found = rewrite(pack, "model.safetensors", lambda a: a.update({"lm_head.weight": mx.zeros((2,))}))
    weights = load_trunk_weights(found, trunk_shapes(found), ignore=lambda name: name == "lm_head.weight")
    assert "lm_head.weight" not in weights


def test_a_nan_scale_is_found_in_a_quantised_pack(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "pack", hidden=64, quantized=True)

    def spoil(arrays: dict[str, mx.array]) -> None:
        name = "model.layers.0.mlp.up_proj.scales"
        arrays[name] = mx.full(arrays[name].shape, float("nan"))

    found = rewrite(pack, "model.safetensors", spoil)
    with pytest.raises(PackError, match="up_proj"):
        load_trunk_weights(found, trunk_shapes(found))


@pytest.mark.parametrize("ids", [[0, 0], [5, 320], [-1, 3]])
def test_draft_ids_must_be_distinct_ids_of_the_vocabulary(tmp_path: Path, ids: list[int]) -> None:
    pack = write_tiny_pack(tmp_path / "pack", draft_vocab=2)
    found = rewrite(pack, "mtp.safetensors", lambda a: a.update({"draft_ids": mx.array(ids, dtype=mx.int32)}))
    with pytest.raises(PackError, match="draft_ids"):
        load_head_weights(found, head_shapes(found))


def test_a_swapped_trunk_of_the_same_size_is_found_at_load(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "pack")
    other = write_tiny_pack(tmp_path / "other", seed=1)
    (pack / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    found = describe(pack)
    assert found.head.ok
    with pytest.raises(PackError, match="checksum"):
        load_trunk_weights(found, trunk_shapes(found))


def test_what_a_worker_thread_loads_it_can_use(tmp_path: Path) -> None:
    found = describe(write_tiny_pack(tmp_path / "pack"))
    sums: list[float] = []

    def work() -> None:
        weights = load_trunk_weights(found, trunk_shapes(found))
        sums.append(float(mx.sum(weights["model.embed_tokens.weight"]).item()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(sums) == 1
