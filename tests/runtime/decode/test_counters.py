"""Counters of served requests: the identities, the limits of good and bad drafters, and calibration."""

import math

import numpy as np
import pytest

from mtrun.runtime.acceptance.rates import draft_acceptance, tokens_per_cycle
from support.laws import LAWS
from support.table_parts import table_parts, tables
from support.tiny_parts import adversarial, decoder, events, finished, install, perfect, request, tokens, with_drafter

PROMPT = (0, 3)
DELTA = 1e-6


def small(law=None):
    target, draft = tables(9, seed=2)
    return table_parts(target, draft, law)


def served(parts, depth, **asked):
    made = events(decoder(parts, depth, context=10**6), request(PROMPT, **asked))
    return tokens(made), finished(made)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("lanes", [(), ("batched_target_rows",)], ids=["stock", "batched"])
def test_the_identities_hold_after_every_request(law, lanes):
    parts = small(law)
    install(parts, *lanes)
    for depth, length, sampling in ((1, 20, {}), (3, 31, {"top_k": 3}), (5, 18, {"temperature": 0.0}), (5, 2, {})):
        made, end = served(parts, depth, max_tokens=length, **sampling)
        counts = end.counts
        assert counts.identities() == []
        assert counts.generated == len(made) == end.completion_tokens == length
        assert counts.generated == 1 + counts.emitted - counts.truncated  # the first token comes from the prefill
        assert counts.verify_calls == counts.cycles
        assert counts.drafted == depth * counts.cycles
        rate = tokens_per_cycle(counts)
        assert rate is not None
        assert 1 <= rate <= depth + 1


@pytest.mark.parametrize("rule", [None, "block"])
def test_every_position_of_the_exact_law_is_a_coin_position(rule):
    parts = small()
    install(parts, *(["block_verify"] if rule else []))
    counts = served(parts, 3, max_tokens=40)[1].counts
    assert counts.deferred == counts.positions > 0
    assert 0 < counts.accepted < counts.drafted
    assert counts.identities() == []


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_depth_0_leaves_every_draft_counter_at_zero(law):
    end = finished(events(decoder(small(law), 3), request(PROMPT, max_tokens=20, depth=0)))
    counts = end.counts
    drafted = {k: v for k, v in vars(counts).items() if k not in ("generated", "verify_calls")}
    assert not any(drafted.values())
    assert (counts.generated, counts.verify_calls) == (20, 19)
    assert not end.law.engaged


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_good_and_bad_drafters_show_as_such(depth):
    plain, _ = served(small(), 0, max_tokens=70, temperature=0.0)
    for drafter, expected in ((perfect(PROMPT, plain), 1.0), (adversarial(PROMPT, plain, 9), 0.0)):
        made, end = served(with_drafter(small(), drafter), depth, max_tokens=60, temperature=0.0)
        assert made == plain[:60]
        assert draft_acceptance(end.counts) == expected
        assert end.counts.identities() == []


@pytest.mark.parametrize("lanes", [(), ("batched_target_rows",)], ids=["stock", "batched"])
def test_keeps_of_the_exact_law_match_the_overlap_of_the_rows(lanes):
    """|accepted - sum of K_i| within Hoeffding's bound, K_i = sum min(p, q) recomputed here from the two rows."""
    parts = small()
    install(parts, *lanes)
    verify, overlaps = parts.verify, []

    def recording(cycle):
        outcome = verify(cycle)
        reached = min(outcome.kept + 1, cycle.depth)
        logits = np.array(cycle.logits[:reached], dtype=np.float64)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        q = np.array(cycle.draft_rows.probs)[:reached] if reached else np.zeros_like(p)
        overlaps.extend(np.minimum(p, q).sum(axis=1))
        return outcome

    parts.verify = recording
    _, end = served(parts, 3, max_tokens=800)
    counts = end.counts
    assert len(overlaps) == counts.positions > 400
    assert counts.divergence == pytest.approx(sum(1 - k for k in overlaps), abs=1e-5 * len(overlaps))
    assert abs(counts.accepted - sum(overlaps)) <= math.sqrt(len(overlaps) * math.log(2 / DELTA) / 2)


def test_a_cancelled_request_still_reports_consistent_counts():
    looks = iter([False] * 6 + [True] * 50)
    made = list(decoder(small(), 3).run(request(PROMPT, max_tokens=100), lambda: next(looks)))
    end = finished(made)
    assert end.reason == "cancelled"
    assert end.completion_tokens == len(tokens(made)) == end.counts.generated
    assert end.counts.identities() == []
    assert end.counts.cycles == 5


def test_a_request_cancelled_during_prefill_makes_no_token():
    made = list(decoder(small(), 3, chunk=1).run(request(PROMPT), lambda: True))
    assert tokens(made) == []
    assert (finished(made).reason, finished(made).completion_tokens) == ("cancelled", 0)
