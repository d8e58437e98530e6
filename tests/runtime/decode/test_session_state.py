"""After any pattern of keeps and rejections, trunk and head stand where a run that never drafted would stand."""

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtrun.kernels.draft import draw_token
from mtrun.kernels.rows import Rows, accumulator
from mtrun.runtime.decode.draft import Drafted, MtpDrafter
from support.tiny_parts import decoder, events, install, request, tiny_parts, tokens

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
TOLERANCE = 1e-5


class SteeredDrafter(MtpDrafter):
    """Runs the head's real chain, then proposes the true continuation with the first wrong draft at a chosen place."""

    def __init__(self, parts, reply, patterns):
        self.first_logits = []  # of each cycle: what the head says right after the verified pairs
        self.calls = 0
        super().__init__(parts.trunk, parts.head, self._recording(parts.draft_scorer), parts.draft_rows)
        self.reply, self.patterns, self.vocab = reply, list(patterns), parts.trunk.vocab_size
        self.done = -(len(PROMPT) - 1)

    def _recording(self, score):
        def recorded(state):
            self.calls += 1
            made = score(state)
            self.latest = self.latest if self.calls > 1 else made.logits
            return made

        return recorded

    def observe(self, pairs):
        self.done += len(pairs.tokens)
        super().observe(pairs)

    def draft(self, depth, how, adjust, uniforms):
        self.calls = 0
        super().draft(depth, how, adjust, uniforms)
        self.first_logits.append(self.latest)
        ids = self.reply[self.done : self.done + depth]
        keep = self.patterns[len(self.first_logits) - 1]
        if keep < depth:
            ids[keep] = (ids[keep] + 1) % self.vocab
        drafted = mx.array(ids, dtype=mx.int32)
        return Drafted(drafted, Rows(drafted[:, None], mx.ones((depth, 1), dtype=accumulator())))


@pytest.fixture(scope="module", params=[None, 12], ids=["full", "sliding"])
def model(request, tmp_path_factory):
    parts = tiny_parts(
        tmp_path_factory.mktemp("state"), vocab=20, hidden=16, seed=1, tied=False, sliding_window=request.param
    )
    return parts, plain(parts)


def plain(parts):
    return tokens(events(decoder(parts, 0), request(PROMPT, temperature=0.0, max_tokens=50)))


def forked(caches):
    """Independent copies: a forward on them leaves the originals alone."""
    copies = []
    for cache in caches:
        copy = type(cache).__new__(type(cache))
        vars(copy).update({k: v[...] if isinstance(v, mx.array) else v for k, v in vars(cache).items()})
        copies.append(copy)
    return copies


def next_logits(parts, session):
    """Logits after the session's own caches have read the primary token."""
    fed = mx.array([[session.primary]], dtype=mx.int32)
    return parts.trunk.forward(fed, forked(session.caches), "last").logits


def from_scratch(parts, ids):
    """(hidden [1, L, H], logits of the last position) of a single prefill with new caches."""
    out = parts.trunk.forward(mx.array([ids], dtype=mx.int32), parts.trunk.new_caches(), "last")
    return out.hidden, out.logits


def head_from_scratch(parts, ids, hidden):
    """Draft logits of a head that reads every verified pair of ids in one go."""
    embedded = parts.trunk.embed(mx.array([ids[1:]], dtype=mx.int32))
    state = parts.head.forward(hidden[:, :-1], embedded, parts.head.new_caches(), 0)
    return parts.draft_scorer(state[0, -1:]).logits


def close(a, b):
    return float(mx.max(mx.abs(a - b))) < TOLERANCE


@settings(max_examples=25, deadline=None)
@given(data=st.data(), depth=st.integers(1, 5), chunk=st.sampled_from([3, 64]))
def test_state_after_each_cycle_equals_a_run_that_never_drafted(model, data, depth, chunk):
    parts, reply = model
    patterns = data.draw(st.lists(st.integers(0, depth), min_size=1, max_size=6))
    steered = SteeredDrafter(parts, reply, patterns)
    loop = decoder(parts, depth, chunk=chunk)
    session = loop.session(request(PROMPT, temperature=0.0), depth)
    session.drafter = steered
    list(loop._prefill(session, tuple(PROMPT)))
    ids = [*PROMPT, session.primary]
    for keep in patterns:
        assert all(cache.offset == len(ids) - 1 for cache in session.caches)
        hidden, logits = from_scratch(parts, ids)
        assert close(next_logits(parts, session), logits)
        made = session.step(depth)
        assert close(steered.first_logits[-1], head_from_scratch(parts, ids, hidden))
        assert made == reply[len(ids) - len(PROMPT) :][: keep + 1]
        ids += made
        assert session.length == len(ids) - 1
        assert session.last_logits is not None
        assert session.last_logits.shape[0] == len(made)
    assert all(cache.offset == len(ids) - 1 for cache in session.caches)
    assert close(next_logits(parts, session), from_scratch(parts, ids)[1])
    assert all(cache.offset == len(ids) - 1 - len(made) for cache in steered.caches)


def test_reading_again_is_noted_where_a_cache_cannot_trim(model):
    parts, reply = model
    sliding = any(type(cache).__name__ == "RotatingKVCache" for cache in parts.trunk.new_caches())
    made = events(decoder(parts, 3), request(PROMPT, temperature=0.0, max_tokens=30))
    assert tokens(made) == reply[:30]
    notes = made[-1].notes
    assert bool(notes) == sliding
    if sliding:
        assert "RotatingKVCache does not roll back by trimming" in notes[0]


def test_two_sessions_of_one_decoder_share_nothing(model):
    parts, reply = model
    loop = decoder(parts, 3)
    mine, other = (loop.run(request(p, temperature=0.0, max_tokens=30), lambda: False) for p in (PROMPT, [7, 7]))
    alone = tokens(events(loop, request([7, 7], temperature=0.0, max_tokens=30)))
    made, others = [], []
    for left, right in zip(mine, other, strict=False):
        made, others = [*made, left], [*others, right]
    made, others = [*made, *mine], [*others, *other]
    assert tokens(made) == reply[:30]
    assert tokens(others) == alone


def test_3000_tokens_at_depth_4_do_not_drift(tmp_path):
    parts = tiny_parts(tmp_path, vocab=12, hidden=8, heads=2, kv_heads=1, layers=1, scale=0.5, tied=False, context=4096)
    install(parts, "batched_target_rows")
    loop = decoder(parts, 4, context=4096)
    session = loop.session(request(PROMPT, temperature=1.0, seed=5), 4)
    session.drafter = UniformDrafter(parts.trunk.vocab_size)
    list(loop._prefill(session, tuple(PROMPT)))
    ids = [*PROMPT, session.primary]
    while len(ids) < 3000 + len(PROMPT):
        ids += session.step(4)
        assert session.caches[0].offset == session.length == len(ids) - 1
        assert session.primary == ids[-1]
    assert session.counts.identities() == []
    assert 0.2 < session.counts.accepted / session.counts.drafted < 0.95
    assert float(mx.max(mx.abs(next_logits(parts, session) - from_scratch(parts, ids)[1]))) < 1e-4


class UniformDrafter:
    """Drafts any token, equally likely: against flat target rows cycles end at every depth."""

    def __init__(self, vocab):
        self.row = mx.full((1, vocab), 1 / vocab, dtype=accumulator())

    def observe(self, pairs):
        pass

    def catch_up(self):
        pass

    def draft(self, depth, how, adjust, uniforms):
        rows = Rows(None, mx.repeat(self.row, depth, axis=0))
        return Drafted(draw_token(rows, uniforms), rows)
