"""Log-probabilities come from the target's own unfiltered row at temperature 1, at drafted positions too."""

import mlx.core as mx
import numpy as np
import pytest

from mtrun.runtime.requests import Chunk
from support.tiny_parts import decoder, events, install, perfect, request, tiny_parts, tokens, with_drafter

PROMPT = [3, 1, 4]
VOCAB = 20


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return tiny_parts(tmp_path_factory.mktemp("logprobs"), vocab=VOCAB, hidden=16, layers=1, seed=1, tied=False)


def logprobs(made):
    return [each for event in made if isinstance(event, Chunk) for each in event.logprobs]


def expected_rows(parts, reply, adjust=lambda logits, before: logits):
    """[L, V] log-softmax of the row before each token, each from its own prefill."""
    rows = []
    for i in range(len(reply)):
        fed = mx.array([[*PROMPT, *reply[:i]]], dtype=mx.int32)
        logits = np.array(parts.trunk.forward(fed, parts.trunk.new_caches(), "last").logits[0], dtype=np.float64)
        logits = adjust(logits, reply[:i])
        rows.append(logits - np.logaddexp.reduce(logits))
    return np.array(rows)


def check(made, rows, top):
    reply, found = tokens(made), logprobs(made)
    assert [each.token_id for each in found] == reply
    for each, row in zip(found, rows, strict=True):
        assert each.logprob == pytest.approx(row[each.token_id], abs=1e-4)
        assert len(each.top) == min(top, VOCAB)
        values = [value for _, value in each.top]
        assert values == sorted(values, reverse=True)
        assert values == pytest.approx(sorted(row, reverse=True)[:top], abs=1e-4)
        assert [row[token] for token, _ in each.top] == pytest.approx(values, abs=1e-4)


@pytest.mark.parametrize("lanes", [(), ("batched_target_rows",)], ids=["stock", "batched"])
@pytest.mark.parametrize(("depth", "top"), [(0, 3), (3, 0), (3, 5), (5, 20)])
def test_every_token_has_the_targets_own_logprob(parts, lanes, depth, top):
    installed = install(parts, *lanes)
    asked = request(PROMPT, max_tokens=14, temperature=0.6, top_k=5, top_logprobs=top)
    made = events(decoder(parts, depth), asked)
    for each in installed.values():
        each.undo()
    check(made, expected_rows(parts, tokens(made)), top)


@pytest.mark.parametrize("max_tokens", [14, 15, 16])
def test_accepted_drafts_have_theirs_also_where_the_run_is_cut(parts, max_tokens):
    reply = tokens(events(decoder(parts, 0), request(PROMPT, temperature=0.0, max_tokens=30)))
    drafted = with_drafter(parts, perfect(PROMPT, reply))
    made = events(decoder(drafted, 5), request(PROMPT, temperature=0.0, max_tokens=max_tokens, top_logprobs=4))
    assert made[-1].counts.accepted > 8
    check(made, expected_rows(parts, reply[:max_tokens]), 4)


def test_penalties_and_bias_are_part_of_the_row(parts):
    def adjust(logits, before):
        logits = logits.copy()
        for token in set(before):
            logits[token] -= 0.5 * before.count(token)
        logits[2] += 3.0
        return logits

    asked = request(PROMPT, max_tokens=14, frequency_penalty=0.5, logit_bias={2: 3.0}, top_logprobs=2)
    made = events(decoder(parts, 3), asked)
    check(made, expected_rows(parts, tokens(made), adjust), 2)


def test_nothing_is_computed_unasked(parts):
    assert logprobs(events(decoder(parts, 3), request(PROMPT, max_tokens=5))) == []
