"""Self-samples: a pure function of the seed, resumable, right about who wrote which token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtrun.runtime import Engine, compose
from mtrun.runtime.cli.main import main
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.forge import corpus, topics
from mtrun.runtime.forge import sample as sampling
from mtrun.runtime.forge.dialogue import Dialogue
from mtrun.runtime.forge.sample import Chat, SampleConfig, Sampler
from support.tiny_pack import EOS, write_tiny_pack

OFF = ("lanes=none", "lanes.cpu_blas=false")
PLAIN = "profile=exact-stock"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack that ends its turns now and then: with flat rows one token in 320 is the end."""
    return write_tiny_pack(tmp_path_factory.mktemp("sample") / "pack", context=160, scale=0.5, head=False)


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[Engine]:
    with Engine(compose([f"pack={tiny}", PLAIN])) as made:
        yield made


def sampler(engine: Engine, prompts: tuple[str, ...] = ("One.", "Two.", "Three."), **options: Any) -> Sampler:
    settings = {"chats": 8, "max_tokens": 12, "user_tokens": 6, **options}
    return Sampler(engine, prompts, SampleConfig(**settings), {"top_p": 1.0, "top_k": 0})


def chats(engine: Engine, count: int, **options: Any) -> list[Chat]:
    maker = sampler(engine, **options)
    return [maker.chat(number) for number in range(count)]


def test_a_chat_is_a_function_of_seed_and_number(engine: Engine) -> None:
    made = chats(engine, 6, self_turns=0.5, second_turns=0.5)
    maker = sampler(engine, self_turns=0.5, second_turns=0.5)
    assert [maker.chat(number) for number in (5, 0, 3)] == [made[5], made[0], made[3]]
    assert len({tuple(chat.ids) for chat in made}) == 6
    assert all(
        a.ids != b.ids for a, b in zip(made, chats(engine, 6, self_turns=0.5, second_turns=0.5, seed=1), strict=True)
    )


def test_response_bits_are_the_answers_and_their_ends(engine: Engine) -> None:
    ended = 0
    for chat in chats(engine, 12, max_tokens=60):
        ids, bits = np.array(chat.ids), np.array(chat.response)
        asked = int(np.argmax(bits))
        assert engine.tokenizer.decode(chat.ids[:asked], skip_special_tokens=False).endswith("<|im_start|>assistant\n")
        assert bits[asked:].all()
        answer = ids[asked:]
        assert EOS not in answer[:-1]
        assert answer[-1] == EOS or len(answer) == 60
        ended += answer[-1] == EOS
    assert ended


def test_greedy_answers_are_the_engines_own(engine: Engine) -> None:
    maker = Sampler(engine, ("Hello",), SampleConfig(chats=1, max_tokens=10), {"temperature": 0.0})
    chat = maker.chat(0)
    asked = list(engine.tokenizer.encode_chat([{"role": "user", "content": "Hello"}]))
    said = list(engine.generate(asked, max_tokens=10, temperature=0.0).token_ids)
    assert chat.ids[: len(asked) + len(said)] == asked + said


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_asked_share_of_user_turns_is_the_models(engine: Engine, share: float) -> None:
    made = chats(engine, 40, self_turns=share, max_tokens=1)
    assert sum(chat.self_turns for chat in made) == pytest.approx(share * 40, abs=2)
    given = [f"<|im_start|>user\n{words}<|im_end|>" for words in ("One.", "Two.", "Three.")]
    texts = [engine.tokenizer.decode(chat.ids, skip_special_tokens=False) for chat in made]
    assert sum(any(one in text for one in given) for text in texts) == 40 - sum(chat.self_turns for chat in made)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_asked_share_of_chats_has_a_second_turn(engine: Engine, share: float) -> None:
    made = chats(engine, 24, second_turns=share, max_tokens=3)
    assert sum(chat.turns == 2 for chat in made) == pytest.approx(share * 24, abs=2)
    for chat in (chat for chat in made if chat.turns == 2):
        text = engine.tokenizer.decode(chat.ids, skip_special_tokens=False)
        assert text.count("<|im_start|>assistant\n") == 2
        assert any(f"<|im_start|>user\n{words}<|im_end|>" in text for words in topics.FOLLOW_UPS)
        edges = np.flatnonzero(np.diff([0, *chat.response]) == 1)
        assert len(edges) == 2


@pytest.mark.parametrize("ended", [True, False])
def test_the_seam_of_two_turns_holds_one_end_token(engine: Engine, ended: bool) -> None:
    """Rendered whole, a chat has the ids that it was put together from."""
    dialogue, maker = Dialogue(engine.tokenizer, "tiny"), sampler(engine)
    said = engine.tokenizer.encode("fine", add_special_tokens=False)
    first = dialogue.asked("Hi") + list(said) + [EOS] * ended
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "fine"},
        {"role": "user", "content": "And?"},
    ]
    assert maker._joined(first, dialogue.between("And?")) == list(engine.tokenizer.encode_chat(messages))


def test_own_words_begin_where_the_template_lets_a_user_speak(engine: Engine) -> None:
    dialogue = Dialogue(engine.tokenizer, "tiny")
    assert engine.tokenizer.decode(dialogue.opened(), skip_special_tokens=False) == "<|im_start|>user\n"
    assert dialogue.closing() == "<|im_end|>"


def test_every_built_in_prompt_comes_once_before_any_comes_again(engine: Engine) -> None:
    maker = sampler(engine, tuple(map(str, range(50))))
    assert sorted(int(maker._given_words(number, 0)) for number in range(50)) == list(range(50))
    built_in = topics.prompts()
    assert len(set(built_in)) == len(built_in) > 3000


# -- the command ------------------------------------------------------------------------------------------------------
def command(pack: Path, out: Path, *more: object, chats: int = 7) -> int:
    words = ("forge", "sample", pack, PLAIN, "--out", out, "--chats", chats, "--part", 3, "--max-tokens", 8)
    return main([str(word) for word in (*words, "--second-turns", 0.5, *more)])


def test_parts_are_made_once_and_a_resumed_run_equals_a_whole_one(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(tiny, tmp_path / "whole") == 0
    assert "7 chats" in capsys.readouterr().out
    chat, asked = Sampler.chat, []

    def interrupted(self: Sampler, number: int) -> Chat:
        asked.append(number)
        if number == 4 and len(asked) < 6:
            raise KeyboardInterrupt
        return chat(self, number)

    monkeypatch.setattr(Sampler, "chat", interrupted)
    assert command(tiny, tmp_path / "cut") == 130
    assert "same command goes on" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["part-0000.npz", "sample.json"]
    assert command(tiny, tmp_path / "cut") == 0
    assert asked == [0, 1, 2, 3, 4, 3, 4, 5, 6]
    assert command(tiny, tmp_path / "cut") == 0
    assert len(asked) == 9
    one, other = (corpus.read(tmp_path / name, 320, 160) for name in ("whole", "cut"))
    for field in ("ids", "lengths", "response"):
        assert np.array_equal(getattr(one, field), getattr(other, field))
    assert corpus.digest(tmp_path / "whole") != corpus.digest(tmp_path / "whole" / "part-0000.npz")
    assert len(one.lengths) == 7


def test_a_folder_says_what_it_is_of(tiny: Path, tmp_path: Path) -> None:
    assert command(tiny, tmp_path / "out", "--temperature", 0.7, chats=2) == 0
    told = json.loads((tmp_path / "out" / sampling.PLAN).read_text())
    assert told["pack"]["name"] == "tiny"
    assert len(told["pack"]["trunk_identity"]) == 64
    assert (told["sampler"]["temperature"], told["sampler"]["top_k"]) == (0.7, 20)
    assert (told["chats"], told["second_turns"], told["seed"]) == (2, 0.5, 0)
    assert told["mtrun"]


def test_numbers_of_their_own_keep_held_out_chats_apart(tiny: Path, tmp_path: Path) -> None:
    assert command(tiny, tmp_path / "all", chats=6) == 0
    assert command(tiny, tmp_path / "held", "--first", 3, chats=3) == 0
    later, held = (np.load(tmp_path / name)["ids"] for name in ("all/part-0001.npz", "held/part-0000.npz"))
    assert np.array_equal(later, held)


def test_features_take_the_folder(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tiny, tmp_path / "chats", chats=4) == 0
    words = ("forge", "features", tiny, "--data", tmp_path / "chats", "--out", tmp_path / "features", "--top", 8)
    assert main([str(word) for word in words]) == 0
    tokens = sum(np.load(path)["lengths"].sum() for path in (tmp_path / "chats").glob("part-*.npz"))
    assert f"{tokens:,} tokens" in capsys.readouterr().out


def test_prompts_of_a_file_are_asked(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Why?\n\n  How far?  \n")
    assert sampling.read_prompts(tmp_path / "prompts.txt") == ("Why?", "How far?")
    assert command(tiny, tmp_path / "out", "--prompts", tmp_path / "prompts.txt", chats=2) == 0
    told = json.loads((tmp_path / "out" / sampling.PLAN).read_text())
    assert told["prompts"]["count"] == 2


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        (("--seed", 1), "another seed"),
        (("--top-k", 3), "another sampler"),
        (("--self-turns", 0.5), "another self_turns"),
        (("--prompts", "nowhere.txt"), "--prompts"),
        (("--prompts", "EMPTY"), "holds no prompt"),
        (("--second-turns", 2), "second-turns"),
        (("profile=typical-0.2", *OFF), "changes what the pack would say"),
        (("profil=turbo",), "profil"),
    ],
)
def test_what_cannot_be_honoured_is_one_sentence(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[object, ...], hint: str
) -> None:
    (tmp_path / "empty").write_text("\n")
    assert command(tiny, tmp_path / "out", chats=1) == 0
    capsys.readouterr()
    assert (
        command(tiny, tmp_path / "out", *(tmp_path / "empty" if one == "EMPTY" else one for one in more), chats=1) == 2
    )
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mtrun: error: ")]
    assert len(errors) == 1
    assert hint in errors[0]


def test_foreign_files_and_templates_are_refused(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="mtrun forge sample"):
        corpus.files(tmp_path)
    (tmp_path / "part-0000.npz").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="do not say what they are"):
        sampling.claim(tmp_path, {})
    (tmp_path / sampling.PLAN).write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        sampling.claim(tmp_path, {})
    with pytest.raises(ConfigurationError, match="leaves no room"):
        sampler(engine, ("word " * 200,)).chat(0)


def test_nano_asks_and_answers_itself_but_has_no_second_turn() -> None:
    with Engine(compose(["pack=nano", PLAIN])) as engine:
        chat = Sampler(engine, ("2 + 2",), SampleConfig(chats=1, self_turns=1.0, max_tokens=40), {}).chat(0)
        assert chat.self_turns == 1
        text = engine.tokenizer.decode(chat.ids, skip_special_tokens=False)
        assert text.startswith("<|user|>")
        assert text.count("<|end|>") in (1, 2)
        with pytest.raises(ConfigurationError, match="leave out --second-turns"):
            Sampler(engine, ("2 + 2",), SampleConfig(chats=1, second_turns=0.5), {})
