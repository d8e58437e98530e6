"""How a reply ends when the end falls inside a run of accepted drafts, and what a request may not ask."""

import pytest

from mtrun.runtime.errors import RequestError
from support.table_parts import table_parts, tables
from support.tiny_parts import (
    decoder,
    events,
    finished,
    perfect,
    request,
    text,
    tiny_parts,
    tokens,
    with_drafter,
)

VOCAB, PROMPT = 20, (3, 1)
DEPTHS = (0, 1, 5)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    parts = tiny_parts(tmp_path_factory.mktemp("endings"), vocab=VOCAB, hidden=16, layers=1, seed=1, tied=False)
    return parts, tokens(events(decoder(parts, 0), request(PROMPT, temperature=0.0, max_tokens=40)))


def greedy(model, depth, *, context=512, eos=(), **asked):
    """A greedy reply whose every draft is kept."""
    parts, reply = model
    loop = decoder(with_drafter(parts, perfect(PROMPT, reply)), depth, context=context, eos=eos)
    made = events(loop, request(PROMPT, temperature=0.0, **asked))
    assert finished(made).completion_tokens == len(tokens(made)) == finished(made).counts.generated
    assert finished(made).counts.identities() == []
    return made


def shown(ids):
    return "".join(f"{token} " for token in ids)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
def test_max_tokens_is_exact_at_any_depth(model, depth, max_tokens):
    made = greedy(model, depth, max_tokens=max_tokens)
    assert tokens(made) == model[1][:max_tokens]
    assert text(made) == shown(model[1][:max_tokens])
    assert finished(made).reason == "length"


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("at", range(9))
def test_eos_at_any_place_of_a_run(model, depth, at):
    reply = model[1]
    eos = reply[at]
    end = reply.index(eos)
    made = greedy(model, depth, eos={eos}, max_tokens=30)
    assert tokens(made) == reply[:end]
    assert text(made) == shown(reply[:end])
    assert finished(made).reason == "stop"


def test_ignore_eos_reads_on(model):
    made = greedy(model, 5, eos={model[1][2]}, ignore_eos=True, max_tokens=20)
    assert tokens(made) == model[1][:20]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("at", range(9))
def test_a_stop_string_over_two_tokens_at_any_place_of_a_run(model, depth, at):
    reply = model[1]
    stop = shown(reply[at : at + 2])[:-1]
    full = shown(reply)
    cut = full.find(stop)
    made = greedy(model, depth, stop=[stop, "no such text"], max_tokens=30)
    assert text(made) == full[:cut]
    assert finished(made).reason == "stop"
    counted = len(tokens(made))
    assert stop in shown(reply[:counted])
    assert stop not in shown(reply[: counted - 1])


def test_a_stop_string_cut_off_by_max_tokens_comes_out(model):
    stop = shown(model[1][4:8])
    made = greedy(model, 5, stop=[stop], max_tokens=6)
    assert text(made) == shown(model[1][:6])
    assert finished(made).reason == "length"


@pytest.mark.parametrize("depth", [0, 3, 5])
@pytest.mark.parametrize("room", [1, 2, 3, 5, 8])
def test_the_context_limit_ends_a_reply_and_no_forward_goes_past_it(model, depth, room, monkeypatch):
    parts, reply = model
    limit, reached = len(PROMPT) + room, [0]
    forward = parts.trunk.forward

    def watched(ids, caches, logits):
        reached[0] = max(reached[0], caches[0].offset + ids.shape[1])
        return forward(ids, caches, logits)

    monkeypatch.setattr(parts.trunk, "forward", watched)
    made = greedy(model, depth, context=limit, max_tokens=None)
    assert tokens(made) == reply[:room]
    assert text(made) == shown(reply[:room])
    assert finished(made).reason == "length"
    assert reached[0] <= limit


def test_held_back_text_comes_out_at_the_context_limit(model):
    stop = shown(model[1][2:6])
    made = greedy(model, 3, context=len(PROMPT) + 4, stop=[stop], max_tokens=None)
    assert text(made) == shown(model[1][:4])


@pytest.mark.parametrize(
    ("prompt", "words"),
    [((), "empty"), (tuple([1] * 8), "context limit is 8"), ((1, VOCAB), "outside"), ((-1,), "outside")],
)
def test_a_prompt_that_cannot_be_read_is_refused_before_anything_runs(model, prompt, words):
    with pytest.raises(RequestError, match=words):
        decoder(model[0], 3, context=8).run(request(prompt), lambda: False)


def test_depth_of_a_request_is_capped_by_the_configuration_and_the_head():
    parts = table_parts(*tables(5))
    ask = lambda depth: request(PROMPT, depth=depth)  # noqa: E731
    assert [decoder(parts, 3).depth_of(ask(depth)) for depth in (None, 0, 2, 9)] == [3, 0, 2, 3]
    assert decoder(parts, 12).depth_of(ask(None)) == parts.head.max_depth
    parts.head = None
    assert decoder(parts, 3).depth_of(ask(2)) == 0
    made = events(decoder(parts, 3), request(PROMPT, max_tokens=5))
    assert finished(made).counts.cycles == 0
    assert "nothing is drafted" in finished(made).law.reason


def test_prefill_reports_its_progress():
    parts = table_parts(*tables(5))
    made = events(decoder(parts, 3, chunk=4), request([1] * 10, max_tokens=2))
    assert [(each.done, each.total) for each in made[:3]] == [(4, 10), (8, 10), (10, 10)]
