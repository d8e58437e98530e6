"""Targets are aligned with what decoding drafts, runs are seeded, and a stopped run goes on as if it never was."""

import json
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.forge.features import batches, rank_vocabulary, shard_paths
from mtrun.runtime.forge.objective import filtered_targets
from mtrun.runtime.forge.recipe import TrainConfig
from mtrun.runtime.forge.train import Trainer
from support.tiny_forge import VOCAB, Bench

RECIPE = TrainConfig(steps=9, batch=4, warmup=2, chain_from=0.3, checkpoint_every=2)


def parameters(trainer: Trainer) -> dict[str, np.ndarray]:
    return {name: np.array(value) for name, value in tree_flatten(trainer.head.parameters())}


def run(trainer: Trainer, bench: Bench, folder: Path, leave_after: int | None = None) -> list[float]:
    losses = []
    for _, loss in trainer.run(lambda: shard_paths(bench.features), folder):
        losses.append(loss)
        if len(losses) == leave_after:
            break
    return losses


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_depth_d_at_start_i_is_scored_by_the_row_that_predicts_token_i_plus_d_plus_1(bench: Bench, depth: int) -> None:
    trainer = bench.trainer(RECIPE)
    rng = np.random.default_rng(0)
    chats = next(batches(shard_paths(bench.features)[0], 4, 20, rng))
    plan = trainer.aim.plan(chats, depth, 1.0, rng)
    starts = np.array(plan.starts)
    targets = plan.targets[depth - 1]
    assert targets is not None
    found = {}
    for index, slots, weights in zip(*map(np.array, (targets.index, targets.slots, targets.weights)), strict=True):
        b, i = divmod(int(index), chats.ids.shape[1] - 1 if depth == 1 else starts.shape[1])
        found[b, i if depth == 1 else int(starts[b, i])] = (slots, weights)
    expected = {
        (b, i): (chats.top_ids[b, i + depth], filtered_targets(chats.top_logp[b, i + depth][None], 0.95, 20)[0])
        for b in range(4)
        for i in range(chats.ids.shape[1] - 1)
        if i + depth < chats.ids.shape[1] and chats.wanted[b, i + depth]
    }
    assert found.keys() == expected.keys()
    for key, (slots, weights) in expected.items():
        assert np.array_equal(found[key][0], slots)
        assert np.allclose(found[key][1], weights)


def test_a_share_of_the_starts_is_scored_as_it_is_among_all(bench: Bench) -> None:
    trainer = bench.trainer(RECIPE)
    chats = next(batches(shard_paths(bench.features)[0], 8, 20, np.random.default_rng(0)))

    def scored(share: float, depth: int) -> dict[tuple[int, int], list[int]]:
        plan = trainer.aim.plan(chats, 3, share, np.random.default_rng(1))
        starts, targets = np.array(plan.starts), plan.targets[depth - 1]
        assert targets is not None
        places = [divmod(int(index), starts.shape[1]) for index in np.array(targets.index)]
        rows = np.array(targets.slots).tolist()
        return {(b, int(starts[b, s])): row for (b, s), row in zip(places, rows, strict=True)}

    for depth in (2, 3):
        some, every = scored(0.5, depth), scored(1.0, depth)
        assert 0.2 * len(every) < len(some) < 0.8 * len(every)
        assert some.items() <= {place: every[place] for place in some}.items()


def test_mass_outside_the_draft_vocabulary_is_dropped_and_not_spread(bench: Bench) -> None:
    rng = np.random.default_rng(0)
    chats = next(batches(shard_paths(bench.features)[0], 4, 20, rng))
    whole = bench.trainer(RECIPE).aim.plan(chats, 1, 1.0, rng).targets[0]
    half = bench.trainer(RECIPE, draft_vocab=VOCAB // 2).aim.plan(chats, 1, 1.0, rng).targets[0]
    assert whole is not None
    assert half is not None
    inside = np.array(whole.slots) < VOCAB // 2
    assert np.array_equal(np.array(half.weights), np.where(inside, np.array(whole.weights), 0))
    assert 0 < np.array(half.weights).sum() < np.array(whole.weights).sum()


def test_the_draft_vocabulary_holds_the_likeliest_ids_and_those_asked_for(bench: Bench) -> None:
    ids = rank_vocabulary(shard_paths(bench.features), VOCAB, 10, (2, 61))
    mass = np.zeros(VOCAB)
    for path in shard_paths(bench.features):
        with np.load(path) as data:
            for row, logp in zip(data["top_ids"], data["top_logp"].astype(np.float32), strict=True):
                mass[row] += np.exp(logp)
    rest = [one for one in np.argsort(-mass) if one not in (2, 61)][:8]
    assert ids.tolist() == sorted([2, 61, *rest])


def test_equal_seeds_give_equal_losses_and_others_do_not(bench: Bench, tmp_path: Path) -> None:
    first = run(bench.trainer(RECIPE), bench, tmp_path / "a", 5)
    assert run(bench.trainer(RECIPE), bench, tmp_path / "b", 5) == first
    assert run(bench.trainer(replace(RECIPE, seed=1)), bench, tmp_path / "c", 5) != first


@pytest.mark.parametrize(("leave_after", "saved"), [(1, True), (4, True), (6, True), (3, False), (7, False)])
def test_a_stopped_run_ends_with_the_parameters_of_an_uninterrupted_one(
    bench: Bench, tmp_path: Path, leave_after: int, saved: bool
) -> None:
    """Left after a step with a save, or killed with no save but the run's own."""
    whole = bench.trainer(RECIPE)
    losses = run(whole, bench, tmp_path / "whole")
    first = bench.trainer(RECIPE)
    run(first, bench, tmp_path / "parts", leave_after)
    if saved:
        first.save(tmp_path / "parts")
    second = bench.trainer(RECIPE)
    assert second.resume(tmp_path / "parts")
    assert 0 < second.cursor.step <= leave_after
    run(second, bench, tmp_path / "parts")
    assert second.cursor.losses == whole.cursor.losses == losses
    assert all(np.array_equal(value, parameters(whole)[name]) for name, value in parameters(second).items())


def test_another_recipe_is_refused_on_resume_and_a_longer_run_is_not(bench: Bench, tmp_path: Path) -> None:
    trainer = bench.trainer(RECIPE)
    run(trainer, bench, tmp_path, 2)
    trainer.save(tmp_path)
    with pytest.raises(ConfigurationError, match="another learning_rate, depth"):
        bench.trainer(replace(RECIPE, learning_rate=1e-3, depth=2)).resume(tmp_path)
    with pytest.raises(ConfigurationError, match="draft vocabulary"):
        bench.trainer(RECIPE, draft_vocab=8).resume(tmp_path)
    assert bench.trainer(replace(RECIPE, steps=50)).resume(tmp_path)


def test_a_checkpoint_without_the_cursor_inside_a_shard_is_taken_up(bench: Bench, tmp_path: Path) -> None:
    trainer = bench.trainer(RECIPE)
    run(trainer, bench, tmp_path, 5)
    path = tmp_path / "checkpoint.safetensors"
    arrays, metadata = mx.load(str(path), return_metadata=True)
    mx.eval(arrays)
    state = json.loads(metadata["state"])
    del state["cursor"]["batch"], state["cursor"]["generator"]
    mx.save_safetensors(str(tmp_path / "older.safetensors"), arrays, metadata={"state": json.dumps(state)})
    (tmp_path / "older.safetensors").replace(path)
    again = bench.trainer(RECIPE)
    assert again.resume(tmp_path)
    assert again.cursor.batch == 0


def test_training_lowers_the_loss_and_raises_the_overlap_at_every_depth(bench: Bench, tmp_path: Path) -> None:
    trainer = bench.trainer(TrainConfig(steps=120, batch=8, warmup=5, learning_rate=1e-2, chain_from=0.3))
    held = shard_paths(bench.held)
    before = trainer.overlaps(held, 100, 3)
    losses = run(trainer, bench, tmp_path)
    after = trainer.overlaps(held, 100, 3)
    assert np.mean(losses[-10:]) < np.mean(losses[:5]) - 0.3
    assert all(b > a + 0.03 for a, b in zip(before, after, strict=True)), (before, after)


def test_a_depth_weighs_less_than_the_one_before(bench: Bench) -> None:
    """With hardly any weight left a step of chains is a step of depth 1; with equal weights it is another."""

    def after(recipe: TrainConfig) -> dict[str, np.ndarray]:
        trainer = bench.trainer(replace(recipe, learning_rate=1e-2, warmup=1, clip=1e9))
        chats = next(batches(shard_paths(bench.features)[0], 8, 20, np.random.default_rng(0)))
        trainer.step(chats, np.random.default_rng(0))
        return parameters(trainer)

    single = after(replace(RECIPE, chain_from=1.0))
    faded, equal = (after(replace(RECIPE, chain_from=0.0, depth_decay=decay)) for decay in (1e-9, 1.0))
    distance = [sum(float(np.abs(one[name] - single[name]).sum()) for name in single) for one in (faded, equal)]
    assert distance[0] < 0.05 * distance[1]


def test_features_without_a_response_end_the_run_in_one_sentence(bench: Bench, tmp_path: Path) -> None:
    with np.load(shard_paths(bench.features)[0]) as data:
        arrays = dict(data)
    arrays["response"] = np.zeros_like(arrays["response"])
    np.savez(tmp_path / "0000.npz", **arrays)
    with pytest.raises(ConfigurationError, match="nothing to train on"):
        list(bench.trainer(RECIPE).run(lambda: shard_paths(tmp_path), tmp_path / "run"))
