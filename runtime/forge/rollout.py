"""Teacher-forced chains of the head over whole sequences: what decoding does step by step, for many starts at once.

The chain that starts at pair i drafts depth d from the state of depth d-1; its layer sees the depth-1 keys of pairs
0..i (committed history) and the keys of its own earlier depths, exactly as at decode.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mtrun.runtime.forge.hostmath import StepMath
from mtrun.runtime.packs.head import MtpHead


def chain(
    head: MtpHead, hidden: mx.array, embedded: mx.array, starts: mx.array, depth: int, math: StepMath
) -> list[mx.array]:
    """hidden [B, L, H] of positions 0..L-1, embedded tokens [B, L, H] of positions 1..L, starts [B, S] int32 in 0..L-1
    -> `depth` arrays: [B, L, H] of every start at depth 1, [B, S, H] of the chosen ones at depths 2 and more.

    Entry d-1 holds, at start i, the state that predicts token i + d + 1. Starts too close to the end (i + d - 1 >= L)
    are fed the last token instead and must be masked by the caller.
    """
    length = hidden.shape[1]
    places = mx.arange(length)[None]
    x, (queries, key, value) = _enter(head, hidden, embedded)
    mixed = _attend(head, queries, [key], [value], places, math)
    states = [_leave(head, x, mixed, math)]
    keys, values = [key], [value]
    state = _take(states[0], starts)
    for step in range(1, depth):
        token = _take(embedded, mx.minimum(starts + step, length - 1))
        x, (queries, key, value) = _enter(head, state, token, starts + step)
        keys.append(key)
        values.append(value)
        state = _leave(head, x, _attend(head, queries, keys, values, starts, math), math)
        states.append(state)
    return states


def _take(rows: mx.array, places: mx.array) -> mx.array:
    """rows [B, L, H] at places [B, S] -> [B, S, H]."""
    return mx.take_along_axis(rows, places[..., None], axis=1)


def _enter(head: MtpHead, hidden: mx.array, embedded: mx.array, positions: mx.array | None = None):
    """The layer's input [B, S, H], and rotated queries [B, n, S, d], rotated keys [B, n_kv, S, d] and values of it.

    positions [B, S] is each row's place; None = row i stands at place i.
    """
    attention: Any = head.layer.self_attn
    x = head.fuse(hidden, embedded)
    batch, length, _ = x.shape
    normed = head.layer.input_layernorm(x)

    def heads(y: mx.array, count: int) -> mx.array:
        return y.reshape(batch, length, count, -1).transpose(0, 2, 1, 3)

    def rotated(y: mx.array) -> mx.array:
        if positions is None:
            return attention.rope(y)
        count, width = y.shape[1], y.shape[3]
        single = y.transpose(0, 2, 1, 3).reshape(batch * length, count, 1, width)  # rope takes one offset a sequence
        return attention.rope(single, offset=positions.reshape(-1)).reshape(batch, length, count, width).swapaxes(1, 2)

    queries = rotated(heads(attention.q_proj(normed), attention.n_heads))
    keys = rotated(heads(attention.k_proj(normed), attention.n_kv_heads))
    return x, (queries, keys, heads(attention.v_proj(normed), attention.n_kv_heads))


def _attend(head: MtpHead, queries: mx.array, keys: list, values: list, starts: mx.array, math: StepMath) -> mx.array:
    """queries [B, n, S, d] over the history keys[0] [B, n_kv, L, d] up to each start, and over one key a later depth,
    keys[1:] [B, n_kv, S, d], of each chain's own -> [B, S, n * d]."""
    attention: Any = head.layer.self_attn
    repeat = attention.n_heads // attention.n_kv_heads
    length = keys[0].shape[2]

    def spread(y: mx.array) -> mx.array:
        return mx.repeat(y, repeat, axis=1)

    queries = queries * attention.scale
    scores = [queries @ spread(keys[0]).swapaxes(-1, -2)]  # [B, n, S, L]
    scores += [mx.sum(queries * spread(key), axis=-1, keepdims=True) for key in keys[1:]]  # each [B, n, S, 1]
    visible = mx.arange(length)[None, None] <= starts[..., None]
    if len(keys) > 1:
        visible = mx.concatenate([visible, mx.ones((*starts.shape, len(keys) - 1), dtype=mx.bool_)], axis=-1)
    weights = math.softmax(mx.concatenate(scores, axis=-1) if len(keys) > 1 else scores[0], visible)
    mixed = weights[..., :length] @ spread(values[0])
    for i, value in enumerate(values[1:]):
        mixed = mixed + weights[..., length + i : length + i + 1] * spread(value)
    batch, _, count, _ = mixed.shape
    return mixed.transpose(0, 2, 1, 3).reshape(batch, count, -1)


def _leave(head: MtpHead, x: mx.array, mixed: mx.array, math: StepMath) -> mx.array:
    """The rest of the layer, and the norm whose output is the state [B, S, H]."""
    layer, mlp = head.layer, head.layer.mlp
    h = x + layer.self_attn.o_proj(mixed)
    normed = layer.post_attention_layernorm(h)
    return head.norm(h + mlp.down_proj(math.swiglu(mlp.gate_proj(normed), mlp.up_proj(normed))))
