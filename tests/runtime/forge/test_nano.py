"""Nano: same seed same losses, resumed equals uninterrupted, sampling follows the filter, the pack loads strictly."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import yaml

from mtrun.runtime.cli.main import main
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.forge import nano_pack, nano_run, nano_sample
from mtrun.runtime.forge.nano_pack import HeadPlan
from mtrun.runtime.forge.nano_recipe import STAGES, NanoConfig, Shape, stage_at
from mtrun.runtime.forge.nano_tokenizer import END, encode_task, prompt_text, train_tokenizer, write_tokenizer
from mtrun.runtime.forge.nano_train import FILE, TrunkTrainer
from mtrun.runtime.forge.tasks import catalogue
from mtrun.runtime.packs.identity import sha256_file
from mtrun.runtime.packs.reader import describe
from mtrun.runtime.packs.tokenizer import PackTokenizer

TINY = NanoConfig(shape=Shape(32, 1, 2, 32, 400), batch=4, steps=6, warmup=2, report_every=2, measure_every=100)
PLAN = HeadPlan(chats=8, held_chats=4, gap=2.0, check_every=1, strong_steps=3, draft_vocab=64, batch=4)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(400, 0)


def losses(config: NanoConfig, tokenizer, steps: int) -> list[float]:
    trainer = TrunkTrainer(config, tokenizer)
    return [trainer.step() for _ in range(steps)]


def test_the_same_seed_gives_the_same_losses_and_another_does_not(tokenizer) -> None:
    first = losses(TINY, tokenizer, 4)
    assert first == losses(replace(TINY, minutes=1.0), tokenizer, 4)  # the clock decides the end alone
    assert first != losses(replace(TINY, seed=1), tokenizer, 4)


def test_streams_change_no_loss(tokenizer) -> None:
    assert losses(replace(TINY, streams=1), tokenizer, 3) == losses(replace(TINY, streams=2), tokenizer, 3)


def test_training_lowers_the_loss(tokenizer) -> None:
    found = losses(replace(TINY, steps=10**6), tokenizer, 25)
    assert np.mean(found[-5:]) < np.mean(found[:5]) - 0.5


def test_resumed_equals_uninterrupted(tokenizer, tmp_path: Path) -> None:
    whole = TrunkTrainer(TINY, tokenizer)
    expected = [whole.step() for _ in range(5)]
    before = TrunkTrainer(TINY, tokenizer)
    for _ in range(2):
        before.step()
    before.save(tmp_path)
    after = TrunkTrainer(replace(TINY, steps=6), tokenizer)
    assert after.resume(tmp_path)
    for _ in range(3):
        after.step()
    assert after.cursor.losses == expected
    assert after.cursor.tokens == whole.cursor.tokens


def test_another_recipe_is_not_resumed(tokenizer, tmp_path: Path) -> None:
    TrunkTrainer(TINY, tokenizer).save(tmp_path)
    with pytest.raises(ConfigurationError, match="another seed"):
        TrunkTrainer(replace(TINY, seed=5), tokenizer).resume(tmp_path)
    (tmp_path / FILE).write_bytes(b"no")
    with pytest.raises(ConfigurationError, match="no checkpoint"):
        TrunkTrainer(TINY, tokenizer).resume(tmp_path)


def test_the_loss_counts_answer_tokens_alone(tokenizer) -> None:
    trainer = TrunkTrainer(TINY, tokenizer)
    for rows in trainer.rows(0):
        ids = np.array(rows.ids)
        length = ids.shape[1] - 1
        for place, target in zip(np.array(rows.index), np.array(rows.targets)[:, 0], strict=True):
            row, column = divmod(int(place), length)
            assert ids[row, column + 1] == target
            assert tokenizer.token_to_id("<|assistant|>") in ids[row, : column + 1]


def test_the_rate_warms_up_stays_and_falls(tokenizer) -> None:
    trainer = TrunkTrainer(replace(TINY, steps=100, warmup=10), tokenizer)
    rates = []
    for step in range(100):
        trainer.cursor.step = step
        rates.append(trainer.rate())
    assert rates[:10] == pytest.approx([n / 10 for n in range(1, 11)])
    assert set(rates[10:70]) == {1.0}
    assert all(a > b for a, b in pairwise(rates[71:99]))
    assert rates[-1] < 0.05
    long = TrunkTrainer(replace(TINY, steps=10**6, warmup=10, hold=50), tokenizer)
    long.cursor.step = 200
    assert long.rate() == pytest.approx(0.5)


def test_stages_begin_at_the_first_step_and_go_on_in_order() -> None:
    starts = [stage.step for stage in STAGES]
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    assert stage_at(starts[1] - 1) is STAGES[0]
    assert stage_at(starts[1]) is STAGES[1]
    graded = {name for name, family in catalogue.FAMILIES.items() if family.graded}
    assert graded <= set(STAGES[-1].mix)
    for stage in STAGES:
        assert all(len(levels) <= catalogue.FAMILIES[name].levels for name, (_, levels) in stage.mix.items())


def test_the_tokenizer_keeps_digits_single_and_loses_nothing(tokenizer) -> None:
    for task in catalogue.held_set(30):
        ids, asked = encode_task(tokenizer, task.prompt, task.answer)
        assert tokenizer.decode(ids[asked:-1]) == task.answer
        assert ids[-1] == tokenizer.token_to_id(END)
    for word in tokenizer.get_vocab():
        assert not any(c.isdigit() for c in word) or len(word) == 1
    assert train_tokenizer(400, 0).to_str() == tokenizer.to_str()


def test_the_chat_template_gives_what_training_read(tokenizer, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, tokenizer)
    config = Shape().config(tokenizer.get_vocab_size(), 0)
    (tmp_path / "config.json").write_text(json.dumps(config))
    pack = PackTokenizer(tmp_path)
    chat = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Earlier"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "Add 1 and 2."},
    ]
    assert pack.render_chat(chat) == prompt_text("Add 1 and 2.")


def test_draws_follow_top_p_and_top_k() -> None:
    rows = np.log(np.array([[0.5, 0.3, 0.17, 0.03]]))
    rng = np.random.default_rng(0)
    drawn = np.concatenate([nano_sample.draw(rows, rng) for _ in range(4000)])
    share = np.bincount(drawn, minlength=4) / 4000
    assert share == pytest.approx([0.5 / 0.97, 0.3 / 0.97, 0.17 / 0.97, 0], abs=0.03)
    wide = np.zeros((1, 50))
    kept = {int(nano_sample.draw(wide, rng)[0]) for _ in range(800)}
    assert kept == set(range(20))


@pytest.fixture(scope="module")
def built(tokenizer, tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("nano")
    trainer = nano_run.prepare(TINY, out, fresh=False)
    left = nano_run.train(trainer, out, lambda share, note: None, lambda: False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nano_sample, "MAX_TOKENS", 12)
        done = nano_pack.finish(trainer, out, PLAN, lambda what: nullcontext(lambda share, note: None))
    return trainer, left, done, out


def test_the_run_records_and_finishes(built) -> None:
    trainer, left, _, out = built
    assert left.finished
    assert trainer.cursor.step == TINY.steps
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [2, 4, 6, 6]
    assert set(log[-1]["pass_at_1"]) == {"all", *(f for f, one in catalogue.FAMILIES.items() if one.graded)}


def test_the_pack_loads_through_the_strict_reader(built) -> None:
    trainer, _, done, _ = built
    pack = describe(done.pack)
    assert (pack.name, pack.family, pack.head.ok, pack.draft_vocab_size) == ("nano", "llama", True, PLAN.draft_vocab)
    assert pack.quantized_bits == nano_pack.BITS
    assert pack.sampler.top_k == 20
    assert pack.facts == ()
    loaded = nano_pack.load_back(done.pack)
    assert loaded.head is not None
    ids = mx.array([encode_task(trainer.tokenizer, "Add 1 and 2.", "3")[0]])
    ours = np.array(trainer.model(ids))[0]
    theirs = np.array(loaded.trunk.forward(ids, loaded.trunk.new_caches(), "all").logits)
    assert np.abs(ours - theirs).max() < 0.1  # 8 bits


def test_the_manifest_vouches_for_both_heads_and_the_card(built) -> None:
    done = built[2]
    files = describe(done.pack).manifest.files
    assert {"mtp.safetensors", "strong/mtp.safetensors", "strong/head.yaml", "card.yaml", "head.yaml"} <= set(files)
    for name, entry in files.items():
        assert sha256_file(done.pack / name) == entry.sha256
    card = yaml.safe_load((done.pack / "card.yaml").read_text())
    assert card["licence"] == "Apache-2.0"
    assert card["recipe"]["seed"] == TINY.seed
    assert card["pass_at_1"]["all"] == done.passed.overall
    assert card["steps"] == TINY.steps


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    trainer = nano_run.prepare(TINY, tmp_path, fresh=False)
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) == 3

    assert not nano_run.train(trainer, tmp_path, lambda share, note: None, stop).finished
    again = nano_run.prepare(TINY, tmp_path, fresh=False)
    assert again.cursor.step == 3
    assert again.cursor.losses == trainer.cursor.losses
    assert nano_run.prepare(TINY, tmp_path, fresh=True).cursor.step == 0


def test_the_command_trains_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = catalogue.held_set(4)
    monkeypatch.setattr(catalogue, "held_set", lambda: held)
    monkeypatch.setattr(nano_sample, "MAX_TOKENS", 3)
    words = ["forge", "nano", "--out", str(tmp_path), "--trunk-only", "--seed", "3", "--steps"]
    assert main([*words, "1"]) == 0
    assert "pass@1 0.000" in capsys.readouterr().out
    assert main([*words, "2"]) == 0
    assert "goes on at step 1" in capsys.readouterr().err
    assert main([*words, "2", "--seed", "4"]) == 2
    assert "another seed" in capsys.readouterr().err
