"""A built head is the quantised head: strict loading takes it, its card is the run's, and the engine serves it."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import yaml
from mlx.utils import tree_flatten, tree_unflatten

from mtrun.runtime import Engine, compose
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.forge import checkpoint
from mtrun.runtime.forge.build import BuildConfig, build_head, build_pack
from mtrun.runtime.forge.features import shard_paths, vocabulary_mass
from mtrun.runtime.forge.opened import Opened, open_pack
from mtrun.runtime.forge.recipe import TrainConfig
from mtrun.runtime.packs.families import family_of
from mtrun.runtime.packs.heads import committed_head
from mtrun.runtime.packs.inspect import verify
from mtrun.runtime.packs.reader import describe
from support.tiny_forge import make_features, write_chats
from support.tiny_pack import write_tiny_pack


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """A pack whose widths divide by 64, so that every matrix of its head is quantised; full tokenizer."""
    folder = tmp_path_factory.mktemp("wide") / "pack"
    return open_pack(str(write_tiny_pack(folder, hidden=64, layers=1, head=False)))


@pytest.fixture(scope="module")
def trained(wide: Opened, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps, drafting over 100 ids."""
    from mtrun.runtime.forge.train import Trainer

    root = tmp_path_factory.mktemp("run")
    features = make_features(wide, write_chats(root / "chats.npz", 12, 1), root / "features")
    embedding, vocabulary = wide.tables(np.arange(0, 200, 2))
    trainer = Trainer(TrainConfig(steps=4, batch=4, warmup=1), wide.new_head(0), embedding, vocabulary)
    for _ in trainer.run(lambda: shard_paths(features), root / "run"):
        pass
    return root / "run"


@pytest.mark.parametrize("bits", [4, 8])
def test_the_loaded_head_gives_the_outputs_of_the_quantised_head(
    wide: Opened, trained: Path, tmp_path: Path, bits: int
) -> None:
    pack = describe(build_pack(wide, trained, tmp_path / "pack", BuildConfig(bits=bits)))
    assert verify(pack.folder) == []
    loaded = family_of(pack).load(pack)
    assert loaded.head is not None
    assert loaded.draft_ids.tolist() == list(range(0, 200, 2))
    reference = wide.new_head(0)
    saved = mx.load(str(trained / "checkpoint.safetensors"))
    weights = {name[5:]: value for name, value in saved.items() if name.startswith("head.")}
    for name, value in weights.items():
        if value.ndim == 2:
            packed, scales, biases = mx.quantize(value, group_size=64, bits=bits)
            scales, biases = (part.astype(mx.float16).astype(mx.float32) for part in (scales, biases))
            weights[name] = mx.dequantize(packed, scales, biases, 64, bits)
    reference.update(tree_unflatten(list(weights.items())))
    hidden = mx.array(np.random.default_rng(0).normal(size=(1, 5, 64)).astype(np.float32))
    ours = loaded.head.forward(hidden, hidden, loaded.head.new_caches(), 0)
    theirs = reference.forward(hidden, hidden, reference.new_caches(), 0)
    assert np.allclose(np.array(ours), np.array(theirs), atol=1e-5)
    dense = dict(tree_flatten(loaded.head.parameters()))["proj.weight"]
    assert float(mx.max(mx.abs(dense - saved["head.proj.weight"]))) < (0.1 if bits == 4 else 0.01)


def test_the_engine_serves_the_built_pack_with_its_own_head(wide: Opened, trained: Path, tmp_path: Path) -> None:
    build_pack(wide, trained, tmp_path / "pack", BuildConfig())
    with Engine(compose([f"pack={tmp_path / 'pack'}", "lanes.cpu_blas=false"])) as engine:
        reply = engine.generate("the cat", max_tokens=12, ignore_eos=True, seed=1)
    assert len(reply.token_ids) == 12
    assert reply.finished.counts.drafted > 0


def test_a_head_folder_is_one_that_packs_take(wide: Opened, trained: Path, tmp_path: Path) -> None:
    head = committed_head(build_head(wide, trained, tmp_path / "head", BuildConfig()))
    assert head is not None
    assert head.draft_vocab_size == 100
    assert head.trunk_identity == wide.trunk_identity
    card = yaml.safe_load((tmp_path / "head" / "head.yaml").read_text())["card"]
    assert card["steps"] == 4
    assert card["recipe"]["batch"] == 4
    assert card["figures"]["loss"] > 0
    assert card["data"] is None  # nothing but the trainer ran, so no record says what it was trained on


def test_a_head_can_draft_over_the_likeliest_ids_of_other_features(wide: Opened, trained: Path, tmp_path: Path) -> None:
    ranked_on = make_features(wide, write_chats(tmp_path / "chats.npz", 8, 5), tmp_path / "features")
    config = BuildConfig(draft_vocab=30, features=ranked_on)
    head = committed_head(build_head(wide, trained, tmp_path / "head", config))
    assert head is not None
    assert head.draft_vocab_size == 30
    ids = mx.load(str(tmp_path / "head" / "mtp.safetensors"))["draft_ids"]
    mass = vocabulary_mass(shard_paths(ranked_on), wide.pack.vocab_size)
    likeliest = np.argsort(-mass, kind="stable")[: 30 - len(wide.pack.eos_ids)]
    assert set(likeliest.tolist()) | set(wide.pack.eos_ids) >= set(np.array(ids).tolist())
    with pytest.raises(ConfigurationError, match="--features"):
        build_head(wide, trained, tmp_path / "other", BuildConfig(draft_vocab=30))


def test_the_card_tells_what_a_run_started_from(wide: Opened, trained: Path, tmp_path: Path) -> None:
    first = build_head(wide, trained, tmp_path / "first", BuildConfig())
    fields = yaml.safe_load((first / "head.yaml").read_text())
    found = checkpoint.required(trained)
    second = checkpoint.write(tmp_path / "second", replace(found, config=replace(found.config, start=fields["sha256"])))
    config = BuildConfig(start_card=first / "head.yaml")
    built = build_head(wide, second.parent, tmp_path / "built", config)
    assert yaml.safe_load((built / "head.yaml").read_text())["card"]["started_from"] == fields["card"]
    with pytest.raises(ConfigurationError, match="did not start from"):
        build_head(wide, trained, tmp_path / "other", config)


def test_an_existing_folder_stays_unless_it_is_a_build_and_may_go(wide: Opened, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    build_head(wide, trained, out, BuildConfig())
    with pytest.raises(ConfigurationError, match="--replace"):
        build_head(wide, trained, out, BuildConfig())
    build_head(wide, trained, out, BuildConfig(bits=4, replace=True))
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="exists already"):
        build_head(wide, trained, out, BuildConfig(replace=True))
    assert (out / "notes.txt").read_text() == "mine"


def test_a_build_that_fails_leaves_nothing(wide: Opened, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="forge train"):
        build_pack(wide, tmp_path / "no-run", tmp_path / "out" / "pack", BuildConfig())
    assert list((tmp_path / "out").iterdir()) == []
