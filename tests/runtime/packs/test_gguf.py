"""GGUF to pack: the same logits, the same ids."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models import llama

from mtrun.runtime.errors import PackError
from mtrun.runtime.packs.gguf import convert, main, parameter_name, unpermute
from mtrun.runtime.packs.reader import describe
from mtrun.runtime.packs.tokenizer import PackTokenizer
from support.tiny_gguf import tiny_arrays, tiny_metadata, write_tiny_gguf
from support.tiny_pack import tiny_tokenizer


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    source = write_tiny_gguf(folder / "tiny.gguf", tiny_arrays(), tiny_metadata())
    (folder / "pack").mkdir()
    convert(source, folder / "pack")
    return folder / "pack"


def test_rows_of_q_and_k_come_back_in_half_split_order(converted: Path) -> None:
    found = mx.load(str(converted / "model.safetensors"))
    assert isinstance(found, dict)
    wanted = tiny_arrays()
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert mx.array_equal(found[name].astype(mx.float32), array), name


def test_unpermuted_rows_make_half_split_rope_equal_to_interleaved_rope() -> None:
    args: dict[str, Any] = {
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": 64,
    }  # fmt: skip
    interleaved = llama.Model(llama.ModelArgs(**args, rope_traditional=True))
    half_split = llama.Model(llama.ModelArgs(**args))
    half_split.update(interleaved.parameters())
    own, other = interleaved.layers[0].self_attn, half_split.layers[0].self_attn
    other.q_proj.weight, other.k_proj.weight = unpermute(own.q_proj.weight, 4), unpermute(own.k_proj.weight, 2)
    ids = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]])
    assert mx.allclose(interleaved(ids), half_split(ids), atol=1e-5)


def test_the_converted_folder_is_a_pack(converted: Path) -> None:
    found = describe(converted)
    assert (found.family, found.layers, found.context_length, found.eos_ids) == ("llama", 2, 512, (2,))
    assert found.config["rms_norm_eps"] == 1e-5
    assert found.config["tie_word_embeddings"] is True
    assert (found.sampler.temperature, found.sampler.top_p, found.sampler.top_k) == (1.0, 0.95, 20)
    assert PackTokenizer(converted).encode_chat([{"role": "user", "content": "hi"}])[0] == 1


@given(st.text(alphabet=st.characters(exclude_categories=("Nd", "Nl", "No", "Cs")), max_size=30))
@settings(max_examples=60, deadline=None)
def test_ids_equal_the_original_tokenizers(text: str) -> None:
    from mtrun.runtime.packs.gguf import build_tokenizer

    rebuilt = build_tokenizer(plain_metadata().__getitem__)
    assert rebuilt.encode(text).ids == tiny_tokenizer().encode(text).ids
    assert rebuilt.decode(rebuilt.encode(text).ids, skip_special_tokens=False) == text


def test_digits_are_single_tokens_and_specials_are_special(converted: Path) -> None:
    tokenizer = PackTokenizer(converted)
    assert len(tokenizer.encode("2024")) == 4
    assert tokenizer.encode("<|im_end|>") == [2]
    assert tokenizer.decode([2]) == ""


def plain_metadata() -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, mx.array) else value for key, value in tiny_metadata().items()}


@pytest.mark.parametrize(
    ("key", "value"),
    [("general.architecture", "gemma"), ("tokenizer.ggml.pre", "qwen2"), ("tokenizer.ggml.tokens", None)],
)
def test_a_gguf_of_another_kind_is_refused(tmp_path: Path, key: str, value: str | None) -> None:
    metadata = tiny_metadata()
    del metadata[key]
    if value is not None:
        metadata[key] = value
    source = write_tiny_gguf(tmp_path / "x.gguf", tiny_arrays(), metadata)
    with pytest.raises(PackError, match=key):
        convert(source, tmp_path)


def test_a_damaged_file_is_one_sentence_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + b"\x00" * 20)
    assert main([str(tmp_path / "x.gguf"), str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_disk_that_fills_up_while_weights_are_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("[write] Unable to write 10 bytes to file.")

    source = write_tiny_gguf(tmp_path / "x.gguf", tiny_arrays(), tiny_metadata())
    monkeypatch.setattr(mx, "save_safetensors", refuse)
    with pytest.raises(PackError, match="free some space"):
        convert(source, tmp_path)


def test_a_tensor_that_llama_does_not_have_is_refused() -> None:
    with pytest.raises(PackError, match="ssm_in"):
        parameter_name("blk.0.ssm_in.weight")
