"""Stop strings, EOS, max_tokens and held-back text, however the tokens arrive."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrun.runtime.decode.output import Output, overlap
from mtrun.runtime.packs.stream import TextStream
from support.tiny_pack import EOS, tiny_tokenizer


class Pieces:
    """Token i is the i-th piece of text."""

    def __init__(self, pieces):
        self.pieces = pieces

    def push(self, token_id):
        return self.pieces[token_id]

    def flush(self):
        return ""


def output(pieces, stop=(), eos=(), max_tokens=None):
    return Output(Pieces(pieces), stop=stop, eos=eos, max_tokens=max_tokens)


def fed(out, runs):
    """(text pieces, tokens, finish) of a reply whose cycles made `runs`."""
    texts, kept = [], []
    for run in runs:
        released = out.push(run)
        texts.append(released.text)
        kept += released.tokens
        if released.finish:
            return texts, kept, released.finish
    return [*texts, out.close()], kept, None


def cuts(length):
    return st.lists(st.integers(1, length - 1), unique=True).map(sorted)


def split(items, at):
    return [items[a:b] for a, b in zip([0, *at], [*at, len(items)], strict=True)]


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    stop=st.lists(st.sampled_from(["beta gamma", "ma d", "aa", "delta", "zz", "e", "lpha b"]), max_size=3),
)
def test_any_split_of_a_text_over_tokens_and_cycles_gives_the_text_before_the_earliest_stop(data, stop):
    whole = "alpha beta gamma delta aaa"
    pieces = split(whole, data.draw(cuts(len(whole))))
    runs = split(list(range(len(pieces))), data.draw(cuts(len(pieces))) if len(pieces) > 1 else [])
    texts, kept, finish = fed(output(pieces, stop), runs)
    shortest = next((n for n in range(len(pieces) + 1) if any(s in "".join(pieces[:n]) for s in stop)), None)
    if shortest is None:
        assert ("".join(texts), kept, finish) == (whole, list(range(len(pieces))), None)
        return
    said = "".join(pieces[:shortest])
    assert "".join(texts) == said[: min(said.find(s) for s in stop if s in said)]
    assert kept == list(range(shortest))
    assert finish == "stop"


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_max_tokens_cuts_inside_a_run(max_tokens):
    released = output(list("abcdef"), max_tokens=max_tokens).push(range(6))
    assert (released.text, released.tokens, released.finish) == (
        "abcdef"[:max_tokens],
        tuple(range(max_tokens)),
        "length",
    )


@pytest.mark.parametrize(("token", "text"), [(0, ""), (1, "a"), (5, "abcde")])
def test_eos_is_neither_counted_nor_shown(token, text):
    out = output(list("abcdef"), eos=[token])
    released = out.push(range(6))
    assert (released.text, len(released.tokens), released.finish) == (text, token, "stop")
    assert out.count == token


def test_a_stop_that_ends_with_the_last_allowed_token_is_a_stop():
    released = output(["ab", "cd", "ef"], stop=["cd"], max_tokens=2).push(range(3))
    assert (released.text, released.finish) == ("ab", "stop")


def test_eos_before_a_stop_string_in_the_same_run_wins_and_the_reverse():
    assert output(["x", "", "END"], stop=["END"], eos=[1]).push(range(3)).tokens == (0,)
    released = output(["x", "END", ""], stop=["END"], eos=[2]).push(range(3))
    assert (released.text, released.tokens, released.finish) == ("x", (0, 1), "stop")


def test_a_partial_stop_is_held_back_and_comes_once_at_the_end():
    for ending in ({"max_tokens": 2}, {"eos": [2]}, {}):
        out = output(["ST", "OP", "PED"], stop=["STOPPED"], **ending)
        first = out.push([0])
        assert first.text == ""
        rest = out.push([1, *([2] if "eos" in ending else [])])
        tail = "" if rest.finish else out.close()
        assert first.text + rest.text + tail == "STOP"


def test_text_is_released_as_soon_as_it_cannot_be_a_stop():
    out = output(["a", "b", "x", "abc"], stop=["abc"])
    assert [out.push([i]).text for i in range(3)] == ["", "", "abx"]
    assert out.push([3]).finish == "stop"


@given(st.text("ab", max_size=8), st.text("ab", min_size=1, max_size=5))
def test_overlap_is_the_longest_proper_prefix_at_the_end(text, stop):
    expected = max(n for n in range(len(stop)) if text.endswith(stop[:n]))
    assert overlap(text, stop) == expected


TOKENIZER = tiny_tokenizer()


def real(stop=(), max_tokens=None):
    stream = TextStream(lambda ids: TOKENIZER.decode(list(ids), skip_special_tokens=True))
    return Output(stream, stop=stop, eos=[EOS], max_tokens=max_tokens)


EMOJI = "héllo 👩‍👧 日本 ok"


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_characters_split_over_tokens_and_cycles_arrive_whole(size):
    ids = TOKENIZER.encode(EMOJI).ids
    texts, kept, _ = fed(real(), [ids[i : i + size] for i in range(0, len(ids), size)])
    assert "".join(texts) == EMOJI
    assert kept == ids
    assert not any("\ufffd" in text for text in texts)


def test_a_character_cut_by_max_tokens_leaves_at_most_one_replacement_at_the_end():
    ids = TOKENIZER.encode(EMOJI).ids
    for length in range(1, len(ids)):
        texts, kept, finish = fed(real(max_tokens=length), [ids])
        text = "".join(texts)
        assert (len(kept), finish) == (length, "length")
        assert text.rstrip("\ufffd") == EMOJI[: len(text.rstrip("\ufffd"))]
        assert text.count("\ufffd") <= 1


def test_a_stop_string_of_characters_split_over_tokens():
    ids = TOKENIZER.encode(EMOJI).ids
    texts, _, finish = fed(real(stop=["日本"]), [ids[i : i + 2] for i in range(0, len(ids), 2)])
    assert ("".join(texts), finish) == ("héllo 👩‍👧 ", "stop")


def test_eos_in_the_middle_of_a_character_ends_the_reply():
    ids = TOKENIZER.encode("a日").ids
    texts, kept, finish = fed(real(), [[*ids[:-1], EOS, ids[-1]]])
    assert finish == "stop"
    assert kept == ids[:-1]
    assert "".join(texts).rstrip("\ufffd") == "a"
