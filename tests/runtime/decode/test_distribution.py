"""The decoder's own output, many seeds, against laws that are enumerated exactly: Pearson's test at 1e-6."""

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.rows import RowFilter
from mtrun.runtime.acceptance.exact import ExactLaw
from mtrun.runtime.acceptance.law import Judgement, leading
from mtrun.runtime.acceptance.table import build_law
from support.chi_square import DELTA, p_value
from support.table_parts import enumerate_joint, reference_row, table_parts, tables
from support.tiny_parts import decoder, events, install, request, tiny_parts, tokens

START = (0,)
VOCAB = 3
OFF = RowFilter()


def sampled(parts, *, depth, length, runs, prompt=START, draft=None, **sampling):
    """`runs` replies of `length` tokens, one seed each. The context ends with them, so the last cycle drafts less."""
    loop = decoder(parts, depth, context=len(prompt) + length, **(draft or {}))
    return [
        tuple(tokens(events(loop, request(prompt, max_tokens=length, seed=seed, **sampling)))) for seed in range(runs)
    ]


def target_law(target, how, length):
    return enumerate_joint(lambda prefix: reference_row(target[prefix[-1]], how), START, length, len(target))


@pytest.mark.slow
@pytest.mark.parametrize(("lanes", "runs"), [((), 3000), (("block_verify", "batched_target_rows"), 6000)])
def test_the_exact_law_emits_the_targets_joint(lanes, runs):
    target, draft = tables(VOCAB, seed=4)
    parts = table_parts(target, draft)
    install(parts, *lanes)
    seen = sampled(parts, depth=2, length=4, runs=runs)
    assert p_value(seen, target_law(target, OFF, 4)) > DELTA


@pytest.mark.slow
def test_filters_a_trimmed_draft_vocabulary_and_the_drafts_own_sampler_change_nothing():
    how = RowFilter(temperature=0.7, top_p=0.95, top_k=3)
    target, draft = tables(5, seed=7)
    parts = table_parts(target, draft, draft_ids=mx.array([0, 1, 3], dtype=mx.int32))
    install(parts, "frspec", "draft_prescatter", "batched_target_rows")
    own = {"draft_temperature": 1.3, "draft_top_p": 0.9, "draft_top_k": 2}
    sampling = {"temperature": 0.7, "top_p": 0.95, "top_k": 3}
    seen = sampled(parts, depth=3, length=4, runs=1500, draft=own, **sampling)
    assert p_value(seen, target_law(target, how, 4)) > DELTA


@pytest.mark.parametrize(
    ("own", "sampling", "expected"),
    [
        ({}, {"temperature": 0.7, "top_p": 0.9, "top_k": 4, "min_p": 0.1}, RowFilter(0.7, 0.9, 4, 0.1)),
        ({"draft_temperature": 1.3, "draft_top_k": 2}, {"temperature": 0.7, "top_p": 0.9}, RowFilter(1.3, 0.9, 2)),
        ({"draft_temperature": 1.3}, {"temperature": 0.0}, RowFilter(0.0)),
    ],
)
def test_drafts_are_drawn_under_the_requests_filter_unless_the_configuration_says_otherwise(own, sampling, expected):
    parts, seen = table_parts(*tables(9)), set()
    stock = parts.draft_rows
    parts.draft_rows = lambda logits, how: seen.add(how) or stock(logits, how)
    sampled(parts, depth=2, length=6, runs=1, draft=own, **sampling)
    assert seen == {expected}


@pytest.mark.slow
def test_a_transformer_with_its_own_head(tmp_path):
    parts = tiny_parts(tmp_path, vocab=3, hidden=8, heads=2, kv_heads=1, layers=1, tied=False, scale=0.5, seed=2)
    prompt = (0, 1)

    def row(prefix):
        fed = mx.array([list(prefix)], dtype=mx.int32)
        return reference_row(np.array(parts.trunk.forward(fed, parts.trunk.new_caches(), "last").logits[0]), OFF)

    seen = sampled(parts, depth=2, length=4, runs=800, prompt=prompt)
    assert p_value(seen, enumerate_joint(row, prompt, 4, 3)) > DELTA


def test_plain_sampling_emits_the_targets_joint():
    target, draft = tables(VOCAB, seed=4)
    seen = sampled(table_parts(target, draft), depth=0, length=3, runs=1500)
    assert p_value(seen, target_law(target, OFF, 3)) > DELTA


@dataclass(frozen=True)
class BrokenLaw(ExactLaw):
    """The exact law with one fault."""

    fault: str = ""

    def judge(self, block):
        if self.fault == "keeps always":
            return Judgement(mx.array(block.coins.shape[0], dtype=mx.int32), mx.zeros(block.coins.shape) > 0, block.p)
        right = super().judge(block)
        if self.fault == "residual from p":
            return Judgement(right.kept, right.deferred, block.p)
        if self.fault == "keeps the target's favourite":
            keep = mx.argmax(block.p, axis=-1) == block.drafted
            return Judgement(leading(keep | (block.coins < 0.5)), right.deferred, right.replacement)
        weak = block.coins < mx.minimum(block.at(block.p), 1)  # the coin forgets the draft's own probability
        return Judgement(leading(weak), right.deferred, right.replacement)


@pytest.mark.parametrize(
    "fault", ["keeps always", "residual from p", "keeps the target's favourite", "coin of p alone"]
)
def test_a_broken_law_is_found(fault):
    target, draft = tables(VOCAB, seed=4)
    seen = sampled(table_parts(target, draft, BrokenLaw(fault)), depth=2, length=4, runs=500)
    assert p_value(seen, target_law(target, OFF, 4)) < DELTA


def test_a_draft_judged_against_a_row_it_was_not_drawn_from_is_found():
    target, draft = tables(VOCAB, seed=4)
    parts = table_parts(target, draft)
    verify = parts.verify

    def judging(cycle):
        if cycle.depth:
            rows = cycle.draft_rows
            flat = mx.power(rows.probs, 2.0)
            wrong = type(rows)(rows.ids, flat / mx.sum(flat, axis=-1, keepdims=True))
            cycle = replace(cycle, draft_rows=wrong)
        return verify(cycle)

    parts.verify = judging
    seen = sampled(parts, depth=2, length=4, runs=1200)
    assert p_value(seen, target_law(target, OFF, 4)) < DELTA


LOSSY = {
    "opt": build_law("cascade", rule="opt", alpha=0.4),
    "tokenv1": build_law("cascade", rule="tokenv1", alpha=0.2),
    "tokenv2": build_law("cascade", rule="tokenv2", alpha=0.2),
    "tokenv3": build_law("cascade", rule="tokenv3", alpha=0.5),
    "typical": build_law("typical", threshold=0.9),
    "typical-pi": build_law("typical-pi", threshold=0.9),
}


def emitted_row(law, p, q):
    """pi of the closed forms: q inside the keep set, the deferred draft mass shared out as p."""
    if law.rule == "opt":
        return p if q.max() < p.max() - law.alpha * np.maximum(p - q, 0).sum() else q
    match law.rule or law.name:
        case "tokenv1":
            keep = q >= p.max() - law.alpha
        case "tokenv2":
            keep = p >= p.max() - law.alpha
        case "tokenv3":
            keep = p >= (1 - law.alpha) * p.max()
        case _:
            keep = p > min(law.eps, law.threshold * np.exp((p * np.log(p)).sum()))
    return q * keep + q[~keep].sum() * p


@pytest.mark.slow
@pytest.mark.parametrize("law", LOSSY.values(), ids=LOSSY)
def test_a_lossy_law_emits_its_own_pi(law):
    """Tokens 2 and 3 sit at draft positions whatever is rejected; the first comes from the prefill."""
    target, draft = tables(VOCAB, seed=4)
    loop = decoder(table_parts(target, draft, law), 2, context=len(START) + 4)
    asked = (request(START, max_tokens=3, seed=seed) for seed in range(800))
    seen = [tuple(tokens(events(loop, each))) for each in asked]

    def row(prefix):
        p, q = (reference_row(table[prefix[-1]], OFF) for table in (target, draft))
        return p if len(prefix) == len(START) else emitted_row(law, p, q)

    own, exact = enumerate_joint(row, START, 3, VOCAB), target_law(target, OFF, 3)
    assert p_value(seen, own) > DELTA
    assert p_value(seen, exact) < 1e-4, "the case must tell the law from the exact one"


def off_support(law, length):
    """Emitted tokens that the request's own filter removed from the target's row."""
    how = RowFilter(temperature=1.0, top_k=3)
    target, draft = tables(10, seed=3, gap=2.0)
    loop = decoder(table_parts(target, draft, law), 3, context=10**6)
    reply = tokens(events(loop, request(START, max_tokens=length, top_k=3)))
    support = [np.flatnonzero(reference_row(row, how)) for row in target]
    return sum(token not in support[before] for before, token in zip([*START, *reply], reply, strict=False))


KEEP_SETS_ON_P = (build_law("cascade", rule="tokenv2", alpha=0.95), LOSSY["tokenv3"], LOSSY["typical"])


@pytest.mark.parametrize("law", KEEP_SETS_ON_P, ids=["tokenv2", "tokenv3", "typical"])
def test_laws_with_keep_sets_on_p_never_leave_the_targets_support(law):
    assert off_support(law, 2000) == 0


def test_a_law_that_may_leave_the_support_is_seen_to_do_so():
    assert off_support(build_law("cascade", rule="opt", alpha=0.9), 300) > 0
