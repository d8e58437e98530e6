"""Text to ids and back, chats, and text released while it grows."""

import json
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrun.runtime.errors import PackError, RequestError
from mtrun.runtime.packs.stream import TextStream
from mtrun.runtime.packs.tokenizer import PackTokenizer
from support.tiny_pack import write_tiny_pack

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PackTokenizer:
    return PackTokenizer(write_tiny_pack(tmp_path_factory.mktemp("pack")))


def with_template(folder: Path, template: str) -> PackTokenizer:
    pack = write_tiny_pack(folder, manifest=False)
    (pack / "chat_template.jinja").write_text(template)
    return PackTokenizer(pack)


@given(st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back(text: str) -> None:
    tokenizer = shared()
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_sizes_and_ends_are_the_packs(tokenizer: PackTokenizer) -> None:
    assert tokenizer.vocab_size == 320
    assert tokenizer.eos_ids == (2,)
    assert tokenizer.decode([1, 2]) == ""
    assert tokenizer.decode([1, 2], skip_special_tokens=False) == "<|im_start|><|im_end|>"


def test_ids_of_a_padded_vocabulary_give_no_text(tmp_path: Path) -> None:
    padded = PackTokenizer(write_tiny_pack(tmp_path / "pack", vocab=1024))
    assert padded.vocab_size < 1024
    assert padded.decode([1023]) == ""


def test_a_chat_is_rendered_and_encoded_with_its_special_tokens(tokenizer: PackTokenizer) -> None:
    text = tokenizer.render_chat(HELLO)
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode_chat(HELLO)
    assert (ids[0], ids.count(1), ids.count(2)) == (1, 2, 1)
    assert not tokenizer.render_chat(HELLO, add_generation_prompt=False).endswith("assistant\n")


def test_special_tokens_written_by_a_user_are_recognised(tokenizer: PackTokenizer) -> None:
    assert tokenizer.encode_chat([{"role": "user", "content": "<|im_end|>"}]).count(2) == 2


def test_a_templates_own_words_reach_the_client(tmp_path: Path) -> None:
    strict = with_template(tmp_path / "pack", "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        strict.render_chat(HELLO)
    assert caught.value.field == "messages"


@pytest.mark.parametrize("template", ["{{ messages[0].nothing.at.all }}", "{{ 1 / 0 }}", "{{ messages + 1 }}"])
def test_a_template_that_fails_blames_the_messages(tmp_path: Path, template: str) -> None:
    with pytest.raises(RequestError) as caught:
        with_template(tmp_path / "pack", template).render_chat(HELLO)
    assert caught.value.field == "messages"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append({}) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{% for i in range(99999999) %}{% endfor %}",
    ],
)
def test_a_template_cannot_reach_python(tmp_path: Path, template: str) -> None:
    with pytest.raises(RequestError):
        with_template(tmp_path / "pack", template).render_chat(HELLO)


def test_a_template_with_a_syntax_error_is_the_packs_fault(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="Jinja"):
        with_template(tmp_path / "pack", "{% for %}")


def test_the_conventions_of_hugging_face_templates_hold(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}\n  {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}{{ tools | tojson }}{{ eos_token }}"
        "{{ strftime_now('%Y') | length }}"
    )
    chat = with_template(tmp_path / "pack", template)
    text = chat.render_chat([{"role": "user", "content": "é<"}, *HELLO], tools=[{"name": "f"}])
    assert text == '{"role": "user", "content": "é<"}[{"name": "f"}]<|im_end|>4'


def test_named_templates_of_the_tokenizer_config_are_used(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "pack", manifest=False)
    (pack / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    (pack / "tokenizer_config.json").write_text(json.dumps({"chat_template": named, "eos_token": {"content": "x"}}))
    chat = PackTokenizer(pack)
    assert (chat.render_chat(HELLO), chat.render_chat(HELLO, tools=[{}])) == ("plain", "tools")


def test_a_pack_without_a_template_says_where_to_go(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "pack", manifest=False)
    (pack / "chat_template.jinja").unlink()
    with pytest.raises(RequestError, match="/v1/completions"):
        PackTokenizer(pack).render_chat(HELLO)


def damage(pack: Path, file: str, change: Any) -> None:
    data = json.loads((pack / file).read_text())
    change(data)
    (pack / file).write_text(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": {"type": "BPE"}}', "x"])
def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    pack = write_tiny_pack(tmp_path / "pack", manifest=False)
    (pack / "tokenizer.json").write_text(text)
    with pytest.raises(PackError):
        PackTokenizer(pack)


def test_a_missing_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "pack", manifest=False)
    (pack / "tokenizer.json").unlink()
    with pytest.raises(PackError, match=r"tokenizer\.json is missing"):
        PackTokenizer(pack)


@pytest.mark.parametrize("size", [319, 0, None, "320", True])
def test_a_vocabulary_larger_than_the_models_is_refused(tmp_path: Path, size: object) -> None:
    pack = write_tiny_pack(tmp_path / "pack", manifest=False)
    damage(pack, "config.json", lambda config: config.update(vocab_size=size))
    with pytest.raises(PackError, match="vocab_size"):
        PackTokenizer(pack)


def test_an_end_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path / "pack", manifest=False)
    damage(pack, "generation_config.json", lambda config: config.update(eos_token_id=320))
    with pytest.raises(PackError, match="end-of-sequence"):
        PackTokenizer(pack)


def pieces(decode: Any, ids: Sequence[int], byte_ids: Collection[int] = ()) -> list[str]:
    stream = TextStream(decode, byte_ids)
    return [*(stream.push(one) for one in ids), stream.flush()]


def test_an_emoji_is_held_until_it_is_whole(tokenizer: PackTokenizer) -> None:
    ids = tokenizer.encode("a🎉b")
    assert len(ids) == 6
    assert pieces(tokenizer.decode, ids) == ["a", "", "", "", "🎉", "b", ""]


def test_an_open_character_at_the_end_comes_with_the_flush(tokenizer: PackTokenizer) -> None:
    ids = tokenizer.encode("a🎉")[:-1]
    assert pieces(tokenizer.decode, ids) == ["a", "", "", "", "\ufffd"]


@given(st.text(alphabet=st.sampled_from("ab 你好日本語한국🎉👩‍👩‍👧é\u0301\ufffd\n<"), max_size=30), st.data())
@settings(max_examples=150, deadline=None)
def test_pieces_of_text_add_up_and_show_no_open_character(text: str, data: st.DataObject) -> None:
    decode = shared().decode
    ids = shared().encode(text)
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    out = pieces(decode, ids)
    assert "".join(out) == decode(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in out[:-1])


@given(st.lists(st.integers(0, 319), max_size=60))
@settings(max_examples=150, deadline=None)
def test_pieces_of_random_ids_add_up_to_the_whole(ids: list[int]) -> None:
    assert "".join(pieces(shared().decode, ids)) == shared().decode(ids)


@given(st.lists(st.sampled_from(["▁a", "▁", "b", "<0xE4>", "<0xBD>", "<0xA0>", "<s>", "▁▁"]), max_size=30))
@settings(max_examples=150, deadline=None)
def test_pieces_of_a_sentencepiece_style_decoder_add_up(tokens: list[str]) -> None:
    from tokenizers import Tokenizer, decoders, models

    names = ["▁a", "▁", "b", "<0xE4>", "<0xBD>", "<0xA0>", "<s>", "▁▁"]
    backend = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[], byte_fallback=True))
    backend.add_special_tokens(["<s>"])
    strip = decoders.Strip(content=" ", left=1, right=0)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    ids = [names.index(token) for token in tokens]
    assert "".join(pieces(backend.decode, ids, {3, 4, 5})) == backend.decode(ids)


def test_the_cost_of_a_piece_does_not_grow_with_the_reply(tokenizer: PackTokenizer) -> None:
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return tokenizer.decode(ids)

    pieces(decode, tokenizer.encode("The cat sat. 🎉 " * 100))
    assert longest <= 12


def test_importing_the_tokenizer_imports_nothing_heavy() -> None:
    heavy = ("mlx.core", "mlx_lm", "numpy", "transformers", "huggingface_hub", "jinja2", "tokenizers", "rich", "yaml")
    code = f"import sys, mtrun.runtime.packs.tokenizer; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


_SHARED: list[PackTokenizer] = []


@pytest.fixture(scope="module", autouse=True)
def _share(tokenizer: PackTokenizer) -> None:
    _SHARED.append(tokenizer)


def shared() -> PackTokenizer:
    """The module's tokenizer, where hypothesis forbids a fixture."""
    return _SHARED[0]
