"""Decoding with every lane that arms itself over native forwards: the stock path's replies, states and counters."""

import itertools
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.draft import Drafted
from mtrun.kernels.native.cache import NativeCache
from mtrun.kernels.rows import Rows
from mtrun.runtime.decode.draft import MtpDrafter
from mtrun.runtime.errors import RequestError
from mtrun.runtime.requests import Chunk
from mtrun.runtime.verdicts import State
from support.native_parts import armed, needs_library, pack_parts
from support.tiny_parts import decoder, events, finished, request, tokens

pytestmark = needs_library
LENGTH, TIE = 80, 1e-4
PROMPTS = ([1, 7, 20, 4, 9], [5], [2, 13] * 20)
PACKS = {
    "dense": {"seed": 16, "vocab": 24, "hidden": 16, "draft_vocab": 16, "scale": 0.3},
    "untied": {"seed": 1, "vocab": 40, "hidden": 16, "draft_vocab": 24, "tied": False, "layers": 1},
    "quantized": {"seed": 2, "vocab": 384, "hidden": 64, "draft_vocab": 256, "quantized": True, "scale": 0.3},
    "no draft vocabulary": {"seed": 3, "vocab": 384, "hidden": 64, "quantized": True, "tied": False},
}
SAMPLINGS = {
    "compact": {"top_k": 8, "top_p": 0.95},
    "dense": {"top_p": 0.9, "temperature": 0.7},
    "min-p": {"min_p": 0.1},
}
BIASED = 6
STEPWISE = {
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.3},
    "bias": {"logit_bias": {4: 3.0, BIASED: -100.0}},
}


class Case:
    """A pack under stock parts, and the same under all lanes that arm themselves."""

    def __init__(self, folder, name):
        self.stock = pack_parts(folder, **PACKS[name])
        self.native = replace(self.stock)
        self.registry, self.installation = armed(self.native)
        self.replies = [reply(self.stock, prompt, 0, temperature=0.0)[0] for prompt in PROMPTS]

    def gap(self, ids):
        """How far MLX's best token after ids is from its second."""
        out = self.stock.trunk.forward(mx.array([ids]), self.stock.trunk.new_caches(), "last")
        second, best = np.sort(np.array(out.logits[0]))[-2:]
        return float(best - second)

    def same(self, prompt, got, wanted):
        """Equal replies, or parted at a tie of MLX's own row, after which they are two texts."""
        for place, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
            if ours != theirs:
                gap = self.gap([*prompt, *wanted[:place]])
                assert gap < TIE, f"parted at {place}, where the best token leads by {gap}"
                return
        assert len(got) == len(wanted)


@pytest.fixture(scope="module", params=PACKS)
def case(request, tmp_path_factory):
    made = Case(tmp_path_factory.mktemp("native"), request.param)
    yield made
    made.installation.undo()


def reply(parts, prompt, depth=3, length=LENGTH, **asked):
    made = events(decoder(parts, depth), request(prompt, max_tokens=length, **asked))
    return tokens(made), finished(made)


def test_every_native_lane_that_arms_itself_is_armed(case):
    ranked = case.stock.draft_ids is not None
    chosen = {verdict.lane for verdict in case.registry.verdicts() if verdict.state is not State.DECLINED}
    assert {"cpu_layer", "draft_chain", "row_kernel", "judge_kernel", "block_verify"} <= chosen
    assert ({"frspec", "draft_prescatter"} <= chosen) == ranked
    assert isinstance(case.native.cache_factory()[0], NativeCache)


def test_the_replies_are_no_short_loops(case):
    assert max(len(set(itertools.pairwise(each))) for each in case.replies) > 20


@pytest.mark.parametrize("depth", range(4))
def test_greedy_replies_are_those_of_plain_stock_decoding(case, depth):
    for prompt, wanted in zip(PROMPTS, case.replies, strict=True):
        got, end = reply(case.native, prompt, depth, temperature=0.0)
        case.same(prompt, got, wanted)
        assert end.counts.identities() == []
        assert (end.counts.drafted > 0) == (depth > 0)


@pytest.mark.parametrize("adjusted", STEPWISE.values(), ids=STEPWISE)
def test_requests_that_draft_step_by_step_are_served_natively(case, adjusted):
    for depth in (1, 3):
        wanted, _ = reply(case.stock, PROMPTS[0], 0, length=60, temperature=0.0, **adjusted)
        got, end = reply(case.native, PROMPTS[0], depth, length=60, temperature=0.0, **adjusted)
        assert wanted != case.replies[0][:60], "the adjustment must matter for the test to mean anything"
        assert got == wanted
        assert end.counts.drafted > 0
    before = case.registry.verdict("draft_chain").engaged_count
    got, end = reply(case.native, PROMPTS[0], length=60, **adjusted)
    assert case.registry.verdict("draft_chain").engaged_count == before
    assert end.counts.identities() == []
    assert BIASED not in got or "logit_bias" not in adjusted


@pytest.mark.parametrize("depth", [1, 3, 5])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_sampled_replies_keep_the_counter_identities_and_repeat(case, sampling, depth):
    before = case.registry.verdict("draft_chain").engaged_count
    for seed in range(3):
        got, end = reply(case.native, PROMPTS[0], depth, length=60, seed=seed, **sampling)
        counts = end.counts
        assert counts.identities() == []
        assert counts.generated == len(got) == 60
        assert counts.drafted == depth * counts.cycles
        assert 0 <= counts.accepted <= counts.drafted
        assert reply(case.native, PROMPTS[0], depth, length=60, seed=seed, **sampling)[0] == got
    assert case.registry.verdict("draft_chain").engaged_count > before


def test_sampled_replies_are_those_of_stock_rows_under_one_seed(case):
    """Plain decoding draws each token from the target's own row at the same uniform: rows differ by rounding alone."""
    for seed in range(3):
        ours, _ = reply(case.native, PROMPTS[0], 0, length=40, seed=seed, top_k=8)
        stock, _ = reply(case.stock, PROMPTS[0], 0, length=40, seed=seed, top_k=8)
        assert ours == stock


class SteeredDrafter(MtpDrafter):
    """Runs the head's real chain, then proposes the known reply with the first wrong draft at a chosen place."""

    def __init__(self, parts, prompt, reply, patterns):
        super().__init__(parts.trunk, parts.head, parts.draft_scorer, parts.draft_rows, parts.draft_chain)
        self.reply, self.patterns, self.vocab = reply, iter(patterns), parts.trunk.vocab_size
        self.done = -(len(prompt) - 1)

    def observe(self, pairs):
        self.done += len(pairs.tokens)
        super().observe(pairs)

    def draft(self, depth, how, adjust, uniforms):
        super().draft(depth, how, adjust, uniforms)
        ids = self.reply[self.done : self.done + depth]
        keep = next(self.patterns)
        if keep < depth:
            ids[keep] = (ids[keep] + 1) % self.vocab
        drafted = np.array(ids, dtype=np.int32)
        return Drafted(drafted, Rows(drafted[:, None], np.ones((depth, 1))))


def fed(parts, ids):
    """(caches, hidden [1, L, H], last logits [V]) of a run that never drafted: one token a forward."""
    caches, hidden, row = parts.cache_factory(), [], None
    for token in ids:
        out = parts.trunk.forward(np.array([[token]], dtype=np.int32), caches, "last")
        hidden.append(out.hidden)
        row = out.logits[0].copy()
    return caches, np.concatenate(hidden, axis=1), row


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_state_after_rejections_has_the_bits_of_a_run_that_never_drafted(case, depth):
    parts, prompt = case.native, PROMPTS[0]
    patterns = [*itertools.product(range(depth + 1), repeat=2)][:10]
    patterns = [keep for pair in patterns for keep in pair]
    known, _ = reply(parts, prompt, 0, length=len(patterns) * (depth + 1) + depth + 2, temperature=0.0)
    loop = decoder(parts, depth, chunk=3)
    session = loop.session(request(prompt, temperature=0.0), depth)
    session.drafter = SteeredDrafter(parts, prompt, known, patterns)
    list(loop._prefill(session, tuple(prompt)))
    ids = [*prompt, session.primary]
    for keep in patterns:
        made = session.step(depth)
        ids += made
        assert len(made) == keep + 1
        assert session.caches[0].offset == session.length == len(ids) - 1
    assert ids == [*prompt, *known[: len(ids) - len(prompt)]]
    _, hidden, row = fed(parts, ids)
    primary = np.array([[session.primary]], dtype=np.int32)
    assert np.array_equal(parts.trunk.forward(primary, session.caches, "last").logits[0], row)
    # The head's cache: its next state is that of a head that read every verified pair in one go.
    caches = parts.head.new_caches()
    embedded = parts.trunk.embed(np.array([ids[1:]], dtype=np.int32))
    wanted = parts.head.forward(hidden[:, :-1], embedded, caches, 0)
    got = session.drafter._read_pending()
    assert np.array_equal(got[:, -1], wanted[:, -1])
    assert session.drafter.caches[0].offset == caches[0].offset == len(ids) - 1


def test_the_context_limit_bounds_prompt_and_reply(case):
    for depth, how in itertools.product((0, 3, 5), ({"temperature": 0.0}, {"top_k": 8})):
        loop = decoder(case.native, depth, context=32)
        made = events(loop, request(PROMPTS[0], max_tokens=100, **how))
        assert finished(made).reason == "length"
        assert len(tokens(made)) == 32 - len(PROMPTS[0])
    with pytest.raises(RequestError, match="context limit"):
        events(decoder(case.native, 3, context=32), request([5] * 32))


def test_the_models_own_limit_is_reached(case):
    limit = case.native.trunk.context_limit
    prompt = [int(each) for each in np.random.default_rng(0).integers(0, 24, limit - 20)]
    wanted, _ = reply(case.stock, prompt, 0, length=100, temperature=0.0)
    for depth in (0, 3, 5):
        made = events(decoder(case.native, depth, context=limit), request(prompt, max_tokens=100, temperature=0.0))
        assert finished(made).reason == "length"
        assert len(tokens(made)) == 20
        case.same(prompt, tokens(made), wanted[:20])


def test_requests_one_after_another_share_nothing(case):
    alone = [reply(case.native, prompt, length=40, seed=i, top_k=8)[0] for i, prompt in enumerate(PROMPTS)]
    loop = decoder(case.native)
    for _ in range(2):
        for i, prompt in enumerate(PROMPTS):
            assert tokens(events(loop, request(prompt, max_tokens=40, seed=i, top_k=8))) == alone[i]


def test_a_cancelled_request_leaves_the_next_one_alone(case):
    asked = request(PROMPTS[0], max_tokens=40, top_k=8)
    loop = decoder(case.native)
    whole = tokens(events(loop, asked))
    seen = []

    def cancelled():
        return len(seen) > 2

    for event in loop.run(asked, cancelled):
        seen += [event] if isinstance(event, Chunk) else []
        last = event
    assert last.reason == "cancelled"
    assert 0 < len(tokens([*seen, last])) < len(whole)
    stream = loop.run(asked, lambda: False)
    next(event for event in stream if isinstance(event, Chunk))
    stream.close()  # a client that went away
    assert tokens(events(loop, asked)) == whole


def test_log_probabilities_are_those_of_stock_rows(case):
    asked = request(PROMPTS[0], max_tokens=24, temperature=0.0, top_logprobs=3)
    runs = [events(decoder(parts, depth), asked) for parts, depth in ((case.stock, 0), (case.native, 3))]
    left, right = ([one for event in run if isinstance(event, Chunk) for one in event.logprobs] for run in runs)
    assert len(left) == len(right) == 24
    for theirs, ours in zip(left, right, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
