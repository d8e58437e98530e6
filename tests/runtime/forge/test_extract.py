"""Features are what one direct forward of the trunk gives, whatever the batching, and shards are made once."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.forge import corpus
from mtrun.runtime.forge.extract import FeatureConfig, Plan, extract, wanted_rows
from mtrun.runtime.forge.features import count, read_shard, shard_paths
from support.tiny_forge import Bench, make_features, write_chats


def test_features_are_a_direct_forward_of_the_trunk(bench: Bench) -> None:
    trunk = bench.opened.trunk()
    seen = 0
    for path in shard_paths(bench.features):
        for chat in read_shard(path, 24):
            ids = mx.array(chat["ids"].astype(np.int32))[None]
            out = trunk.forward(ids, trunk.new_caches(), "all")
            assert np.allclose(chat["hidden"], np.array(out.hidden[0]), atol=4e-3)
            logp = np.array(out.logits - mx.logsumexp(out.logits, axis=-1, keepdims=True))
            for row in np.flatnonzero(chat["wanted"]):
                assert np.allclose(chat["top_logp"][row], -np.sort(-logp[row])[:24], atol=1e-2)
                assert np.allclose(logp[row][chat["top_ids"][row]], chat["top_logp"][row], atol=1e-2)
            assert np.all(np.isneginf(chat["top_logp"][~chat["wanted"]].astype(np.float32)))
            seen += 1
    assert seen == 40


def test_targets_are_the_rows_before_response_tokens_of_the_same_chat(bench: Bench) -> None:
    for path in shard_paths(bench.features):
        for chat in read_shard(path, 24):
            length = len(chat["ids"])
            assert chat["wanted"].tolist() == [1 <= row < length - 1 for row in range(length)]


def test_the_last_row_of_a_chat_is_no_target_whatever_follows() -> None:
    response = np.array([0, 1, 1, 1, 0, 1], dtype=bool)
    assert wanted_rows(response, np.array([3, 3])).tolist() == [0, 1, 4]


def test_every_row_can_be_a_target(bench: Bench, tmp_path: Path) -> None:
    folder = make_features(bench.opened, bench.data, tmp_path / "all", every_row=True, limit=5)
    found = count(shard_paths(folder))
    assert found.chats == 5
    assert found.response_tokens == found.tokens


def test_existing_shards_are_not_made_again(bench: Bench, tmp_path: Path) -> None:
    folder = make_features(bench.opened, bench.data, tmp_path / "again")
    whole = {path.name: path.read_bytes() for path in shard_paths(folder)}
    second = shard_paths(folder)[1]
    second.unlink()
    chats = corpus.read(bench.data, 64, 64)
    plan = Plan.of(chats, FeatureConfig(top=24, shard=16), folder)
    computed = {path.name for path, _, new in extract(bench.opened.trunk(), chats, plan) if new}
    assert computed == {second.name}
    assert {path.name for path in shard_paths(folder)} == set(whole)
    with np.load(second) as now, np.load(bench.features / second.name) as first:
        assert all(np.array_equal(now[name], first[name]) for name in now)


def test_a_folder_takes_no_shards_of_another_order_or_file(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="another seed"):
        make_features(bench.opened, bench.data, bench.features, seed=5)
    with pytest.raises(ConfigurationError, match="another data"):
        make_features(bench.opened, write_chats(tmp_path / "other.npz", 40, 9), bench.features)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lengths": np.array([3], dtype=np.int32)}, "sum to"),
        ({"ids": np.full(4, 64, dtype=np.uint16)}, "vocabulary"),
        ({"response": np.zeros(9, dtype=np.uint8)}, "response"),
        ({"ids": np.zeros(4, dtype=np.float32)}, "integers"),
        ({"ids": np.zeros(99, np.uint16), "lengths": np.array([99]), "response": np.zeros(13, np.uint8)}, "cut it"),
    ],
)
def test_chats_that_do_not_fit_are_refused_in_one_sentence(tmp_path: Path, change: dict, words: str) -> None:
    good = {"ids": np.zeros(4, np.uint16), "lengths": np.array([4], np.int32), "response": np.zeros(1, np.uint8)}
    np.savez(tmp_path / "chats.npz", **{**good, **change})
    with pytest.raises(ConfigurationError, match=words):
        corpus.read(tmp_path / "chats.npz", 64, 64)


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chats.npz").write_text("x")
    with pytest.raises(ConfigurationError, match="no readable"):
        corpus.read(tmp_path / "chats.npz", 64, 64)
