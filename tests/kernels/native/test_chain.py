"""A chain of drafts in one call against its steps: score, filter, draw, embed, forward."""

from __future__ import annotations

from functools import cache

import mlx.core as mx
import numpy as np
import pytest

from mtrun.kernels.native.cache import NativeCache
from mtrun.kernels.native.library import NativeError
from mtrun.kernels.native.llama import NativeHead, NativeModel
from mtrun.kernels.rows import RowFilter, draw, filter_rows
from support.native_packs import TinyModel, same_bits, tiny_model

VOCAB = 70
DRAFT_IDS = (1, 2, 5, 9, 17, 18, 33, 40, 41, 42, 50, 51, 63, 64, 69)
FILTERS = {
    "greedy": RowFilter(temperature=0.0),
    "compact": RowFilter(0.8, 0.95, 6),
    "compact of all but one": RowFilter(1.2, 1.0, len(DRAFT_IDS) - 1, 0.01),
    "dense": RowFilter(1.0),
    "dense, ranked": RowFilter(0.7, 0.9, 0, 0.02),
    "dense for a draft vocabulary": RowFilter(1.0, 0.99, 40),
}
DEPTHS = (1, 2, 3, 4, 5)
PAIRS = 20  # positions that the head has seen before the chain


@cache
def tiny(kind: str) -> TinyModel:
    if kind == "dense":
        return tiny_model(hidden=40, feed_forward=52, heads=3, kv_heads=1, head_dim=24, tied=False, vocab=VOCAB)
    return tiny_model(hidden=64, feed_forward=96, heads=4, kv_heads=2, bits=8, vocab=VOCAB)


def native(kind: str, with_ids: bool, isa: str = "auto") -> NativeModel:
    return tiny(kind).native(isa, draft_ids=DRAFT_IDS if with_ids else None)


def head_of(model: NativeModel) -> NativeHead:
    assert model.head is not None
    return model.head


def pairs(model: NativeModel) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states [1, PAIRS, H] of some text and the embeddings of the tokens after them."""
    ids = np.random.default_rng(7).integers(0, VOCAB, (1, PAIRS + 1)).astype(np.int32)
    hidden = model.trunk.forward(ids[:, :-1], model.trunk.new_caches(), "none").hidden
    return hidden, model.trunk.embed(ids[:, 1:])


def started(model: NativeModel) -> tuple[np.ndarray, list[NativeCache]]:
    """The head's state [H] after those pairs, and its cache."""
    head = head_of(model)
    caches = head.new_caches()
    return head.forward(*pairs(model), caches, 0)[0, -1], caches


def uniforms_of(depth: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(depth)


def steps(
    model: NativeModel, state: np.ndarray, caches: list[NativeCache], depth: int, how: RowFilter, uniforms: np.ndarray,
    trimmed: bool,
) -> tuple[list[int], list[np.ndarray], list[np.ndarray]]:  # fmt: skip
    """What `NativeHead.chain` says it does: tokens, the token ids of the slots, and their probabilities."""
    head = head_of(model)
    vocabulary = head.draft_ids if trimmed else None
    tokens, ids, probs = [], [], []
    for step in range(depth):
        if vocabulary is None:
            logits = model.trunk.project(state[None])
        else:
            logits = head.engine.multiply(head.scorer, state[None])[:, : vocabulary.size]
            assert same_bits(logits, model.trunk.project(state[None])[:, vocabulary])
        slots, row = model.rows.filter(logits, how)
        names = np.arange(row.shape[1]) if slots is None else slots[0]
        names = names if vocabulary is None else vocabulary[names]
        token = int(names[int(draw(row, uniforms[step : step + 1])[0])])
        tokens.append(token)
        ids.append(names)
        probs.append(row[0])
        if step + 1 < depth:
            embedded = model.trunk.embed(np.array([[token]], dtype=np.int32))
            state = head.forward(state[None, None], embedded, caches, step + 1)[0, 0]
    return tokens, ids, probs


@pytest.mark.parametrize("draft_ids", ["none", "used", "left aside"])
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("kind", ["dense", "quantised"])
def test_a_chain_is_its_steps(isa, kind, name, draft_ids):
    """Bit for bit, at every depth, one chain after another on the same trimmed cache."""
    model, how, trimmed = native(kind, draft_ids != "none", isa), FILTERS[name], draft_ids != "left aside"
    state, caches = started(model)
    _, other = started(model)
    drafted = set()
    for seed, depth in enumerate((*DEPTHS, *DEPTHS)):
        uniforms = uniforms_of(depth, seed)
        wanted_tokens, wanted_ids, wanted_probs = steps(model, state, other, depth, how, uniforms, trimmed)
        tokens, ids, probs = head_of(model).chain(state, caches, depth, how, uniforms, trimmed)
        assert tokens.tolist() == wanted_tokens
        assert tokens.dtype == np.int32
        assert same_bits(probs, np.stack(wanted_probs))
        if ids is None:
            assert (wanted_ids[0] == np.arange(VOCAB)).all()
        else:
            assert ids.dtype == np.int32
            assert np.array_equal(ids, wanted_ids)
        assert caches[0].offset == other[0].offset == PAIRS + depth - 1
        assert caches[0].trim(depth - 1) == other[0].trim(depth - 1) == depth - 1
        drafted |= set(wanted_tokens)
    assert (drafted <= set(DRAFT_IDS)) or draft_ids != "used"
    assert len(drafted) > 1


@pytest.mark.parametrize("draft_ids", ["none", "used", "left aside"])
@pytest.mark.parametrize(("name", "slots"), [("greedy", 1), ("compact", 6), ("dense", None), ("dense, ranked", None)])
def test_slots_and_ids(draft_ids, name, slots):
    """ids are None where slot i is token i alone."""
    model = native("dense", draft_ids != "none")
    state, caches = started(model)
    _, ids, probs = head_of(model).chain(state, caches, 3, FILTERS[name], uniforms_of(3, 0), draft_ids != "left aside")
    size = len(DRAFT_IDS) if draft_ids == "used" else VOCAB
    assert probs.shape == (3, slots or size)
    if slots is None and draft_ids != "used":
        assert ids is None
    else:
        assert ids is not None
        assert ids.shape == probs.shape
        assert (np.diff(ids, axis=1) > 0).all()
    assert np.allclose(probs.sum(axis=1), 1, atol=1e-12)


def test_drafts_come_from_the_draft_vocabulary_unless_it_is_left_aside():
    model = native("dense", True)
    state, caches = started(model)
    seen = {True: set(), False: set()}
    for seed in range(60):
        for trimmed, tokens in seen.items():
            tokens |= set(
                head_of(model).chain(state, caches, 3, RowFilter(3.0), uniforms_of(3, seed), trimmed)[0].tolist()
            )
            caches[0].trim(2)
    assert seen[True] <= set(DRAFT_IDS)
    assert len(seen[False] - set(DRAFT_IDS)) > 5


def test_a_chain_repeats_after_a_trim(isa):
    """Whatever was drafted between, and of whatever depth."""
    model = native("quantised", True, isa)
    state, caches = started(model)
    how, uniforms = FILTERS["compact"], uniforms_of(5, 3)
    first = head_of(model).chain(state, caches, 5, how, uniforms)
    caches[0].trim(4)
    for depth in DEPTHS:
        head_of(model).chain(state, caches, depth, FILTERS["dense"], uniforms_of(depth, 50 + depth))
        caches[0].trim(depth - 1)
        again = head_of(model).chain(state, caches, 5, how, uniforms)
        caches[0].trim(4)
        assert all(same_bits(a, b) for a, b in zip(first, again, strict=True) if a is not None and b is not None)


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("name", ["greedy", "compact", "dense"])
def test_a_chain_is_mlx_s(name, with_ids):
    """MLX's head, lm_head and rows with the same uniforms: the same tokens, rows to the rounding of float32."""
    model, stock, how = native("dense", with_ids), tiny("dense"), FILTERS[name]
    state, caches = started(model)
    their_caches = stock.head.new_caches()
    first, embedded = pairs(model)
    hidden = stock.head.forward(mx.array(first), mx.array(embedded), their_caches, 0)[:, -1:]
    uniforms = uniforms_of(5, 11)
    tokens, ids, probs = head_of(model).chain(state, caches, 5, how, uniforms)
    vocabulary = np.array(DRAFT_IDS) if with_ids else np.arange(VOCAB)
    for step in range(5):
        logits = np.array(stock.trunk.project(hidden))[0][:, vocabulary]
        rows = filter_rows(logits, how)
        slots = np.arange(len(vocabulary)) if rows.ids is None else np.array(rows.ids)[0]
        row = np.array(rows.probs)
        token = int(vocabulary[slots[int(draw(row, uniforms[step : step + 1])[0])]])
        assert tokens[step] == token
        assert np.allclose(probs[step], row[0], atol=1e-5)
        assert ids is None or np.array_equal(ids[step], vocabulary[slots])
        hidden = stock.head.forward(hidden, stock.trunk.embed(mx.array([[token]])), their_caches, step + 1)


def test_the_first_draft_fits_where_no_position_is_left():
    """A chain of D drafts holds D - 1 positions of its own; one more is refused and changes nothing."""
    model = native("dense", False)
    head = head_of(model)
    caches = head.new_caches()
    hidden = np.random.default_rng(0).standard_normal((1, 62, 40)).astype(np.float32)
    state = head.forward(hidden, hidden, caches, 0)[0, -1]
    how = FILTERS["compact"]
    with pytest.raises(NativeError, match="context limit"):
        head.chain(state, caches, 4, how, uniforms_of(4, 0))
    assert caches[0].offset == 62
    tokens, _, _ = head.chain(state, caches, 3, how, uniforms_of(3, 0))
    assert caches[0].offset == model.trunk.context_limit == 64
    first, _, _ = head.chain(state, caches, 1, how, uniforms_of(3, 0))
    assert first[0] == tokens[0]
    assert caches[0].offset == 64


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_state_without_a_distribution_is_refused(isa, name, value):
    model = native("quantised", True, isa)
    state, caches = started(model)
    broken = state.copy()
    broken[3] = value
    for trimmed in (True, False):
        with pytest.raises(NativeError, match="a row of logits"):
            head_of(model).chain(broken, caches, 3, FILTERS[name], uniforms_of(3, 0), trimmed)
    assert caches[0].offset == PAIRS
