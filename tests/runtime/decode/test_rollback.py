"""Caches after a rollback equal caches that were never fed the dropped rows; anything less raises."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from mtrun.runtime.decode import rollback
from support.tiny_parts import decoder, events, install, noisy, request, tiny_parts, tokens, with_drafter

WINDOW, WIDTH = 8, 32


def rows(count, start=0):
    """Keys of `count` positions that name their position: [1, 1, count, WIDTH]."""
    values = mx.arange(start, start + count, dtype=mx.float32)[None, None, :, None]
    return mx.broadcast_to(values, (1, 1, count, WIDTH))


def fill(make, count):
    cache = make()
    for i in range(count):
        cache.update_and_fetch(rows(1, i), rows(1, i))
    return cache


KINDS = {
    "float": KVCache,
    "8 bits": lambda: QuantizedKVCache(group_size=32, bits=8),
    "sliding": lambda: RotatingKVCache(max_size=WINDOW),
}


def read(cache, start, count):
    """What attention would be given after `count` more rows."""
    keys, values = cache.update_and_fetch(rows(count, start), rows(count, start))
    flat = lambda state: state if isinstance(state, tuple | list) else (state,)  # noqa: E731
    return [*flat(keys), *flat(values)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [0, 3, WINDOW - 1, WINDOW, 3 * WINDOW + 2])
@pytest.mark.parametrize(("fed", "keep"), [(4, 1), (4, 3), (4, 4), (6, 2)])
@pytest.mark.parametrize("after", [1, 2])
def test_a_cache_rolled_back_reads_as_one_that_was_never_fed(kind, before, fed, keep, after):
    cache, other = fill(KINDS[kind], before), fill(KINDS[kind], before)
    mark = rollback.mark([cache])
    cache.update_and_fetch(rows(fed, before), rows(fed, before))
    plan = rollback.plan([cache], mark, fed, keep)
    rollback.apply([cache], mark, plan)
    if plan.reforward:
        cache.update_and_fetch(rows(keep, before), rows(keep, before))
    other.update_and_fetch(rows(keep, before), rows(keep, before))
    assert cache.offset == other.offset == before + keep
    seen, expected = read(cache, before + keep, after), read(other, before + keep, after)
    newest = slice(-(min(WINDOW, before + keep + after)), None)
    if kind == "sliding" and not plan.reforward:  # a row kept whole may leave older rows in front of the window
        seen, expected = ([mx.sort(x, axis=2)[..., newest, :] for x in state] for state in (seen, expected))
    assert all(mx.array_equal(a, b).item() for a, b in zip(seen, expected, strict=True))


def test_one_layer_that_cannot_trim_sends_every_layer_back():
    caches = [fill(KVCache, 20), fill(KINDS["sliding"], 20)]
    mark = rollback.mark(caches)
    for cache in caches:
        cache.update_and_fetch(rows(4, 20), rows(4, 20))
    plan = rollback.plan(caches, mark, 4, 2)
    assert (plan.drop, plan.reforward) == (4, True)
    assert "RotatingKVCache" in str(plan.reason)
    rollback.apply(caches, mark, plan)
    assert [cache.offset for cache in caches] == [20, 20]


def test_a_plan_changes_nothing():
    cache = fill(KVCache, 5)
    rollback.plan([cache], rollback.mark([cache]), 4, 2)
    assert cache.offset == 5


def test_keeping_every_row_touches_nothing():
    cache = fill(KINDS["sliding"], 5)
    mark = rollback.mark([cache])
    cache.update_and_fetch(rows(3, 5), rows(3, 5))
    rollback.apply([cache], mark, rollback.plan([cache], mark, 3, 3))
    assert cache.offset == 8


def test_a_partial_commit_raises_and_leaves_the_other_layers_alone():
    caches = [fill(KVCache, 9), fill(KVCache, 1)]  # the second layer was never fed the rows to drop
    mark = rollback.mark(caches)
    with pytest.raises(RuntimeError, match="partial commit"):
        rollback.apply(caches, mark, rollback.plan(caches, mark, 5, 2))
    assert [cache.offset for cache in caches] == [9, 1]


def test_greedy_drafting_over_an_8_bit_cache_equals_plain_decoding_over_it(tmp_path):
    vocab, prompt = 24, [1, 2, 3]
    parts = tiny_parts(tmp_path, vocab=vocab, hidden=64, heads=2, kv_heads=1, layers=1, seed=1, tied=False)
    install(parts, "kv_q8")
    reply = tokens(events(decoder(parts, 0), request(prompt, temperature=0.0, max_tokens=126)))
    for depth in (1, 3, 5):
        drafted = with_drafter(parts, noisy(prompt, reply, vocab))
        assert tokens(events(decoder(drafted, depth), request(prompt, temperature=0.0, max_tokens=120))) == reply[:120]
    assert tokens(events(decoder(parts, 4), request(prompt, temperature=0.0, max_tokens=60))) == reply[:60]


@pytest.mark.parametrize("before", [3, 3 * WINDOW + 2])
def test_a_mark_survives_rows_that_are_written_in_place(before):
    cache = fill(KINDS["sliding"], before)
    mark = rollback.mark([cache])
    for stray in (900, 901):  # one row at a time goes into the live buffer
        cache.update_and_fetch(rows(1, stray), rows(1, stray))
    rollback.apply([cache], mark, rollback.Plan(2, True, "as a test says"))
    seen, expected = read(cache, before, 1), read(fill(KINDS["sliding"], before), before, 1)
    assert all(mx.array_equal(a, b).item() for a, b in zip(seen, expected, strict=True))
