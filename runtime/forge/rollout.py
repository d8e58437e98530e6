"""Teacher-forced chains of the head over whole sequences: what decoding does step by step, for all starts at once.

The chain that starts at pair i drafts depth d from the state of depth d-1; its layer sees the depth-1 keys of pairs
0..i (committed history) and the keys of its own earlier depths, exactly as at decode.
"""

from __future__ import annotations

import mlx.core as mx

from mtrun.runtime.packs.head import MtpHead


def chain(head: MtpHead, hidden: mx.array, embedded: mx.array, depth: int) -> list[mx.array]:
    """hidden [B, L, H] of positions 0..L-1 and embedded tokens [B, L, H] of positions 1..L -> `depth` arrays [B, L, H].

    Entry d-1 holds, at start i, the state that predicts token i + d + 1. Starts too close to the end (i + d - 1 >= L)
    are fed the last token instead and must be masked by the caller.
    """
    attention = head.layer.self_attn
    states, keys, values = [], [], []
    length = hidden.shape[1]
    for step in range(depth):
        shifted = _shift(embedded, step)
        x = head.fuse(hidden if step == 0 else states[-1], shifted)
        queries, key, value = _project(attention, head.layer.input_layernorm(x), offset=step)
        keys.append(key)
        values.append(value)
        mixed = _causal(attention, queries, key, value) if step == 0 else _own(attention, queries, keys, values, length)
        h = x + attention.o_proj(mixed)
        out = h + head.layer.mlp(head.layer.post_attention_layernorm(h))
        states.append(head.norm(out))
    return states


def _shift(embedded: mx.array, step: int) -> mx.array:
    """Tokens `step` places further on; the tail repeats the last one."""
    if step == 0:
        return embedded
    tail = mx.repeat(embedded[:, -1:], step, axis=1)
    return mx.concatenate([embedded[:, step:], tail], axis=1)


def _project(attention, x: mx.array, offset: int) -> tuple[mx.array, mx.array, mx.array]:
    """x [B, L, H] -> rotated queries [B, n, L, d], rotated keys, values [B, n_kv, L, d]; row i at i + offset."""
    batch, length, _ = x.shape

    def heads(y: mx.array, count: int) -> mx.array:
        return y.reshape(batch, length, count, -1).transpose(0, 2, 1, 3)

    queries = attention.rope(heads(attention.q_proj(x), attention.n_heads), offset=offset)
    keys = attention.rope(heads(attention.k_proj(x), attention.n_kv_heads), offset=offset)
    return queries, keys, heads(attention.v_proj(x), attention.n_kv_heads)


def _merge(out: mx.array) -> mx.array:
    batch, _, length, _ = out.shape
    return out.transpose(0, 2, 1, 3).reshape(batch, length, -1)


def _causal(attention, queries: mx.array, key: mx.array, value: mx.array) -> mx.array:
    return _merge(mx.fast.scaled_dot_product_attention(queries, key, value, scale=attention.scale, mask="causal"))


def _own(attention, queries: mx.array, keys: list, values: list, length: int) -> mx.array:
    """Depth >= 2: history keys of depth 1 (causal) and, for each start, its own keys of depths 2..d (one a depth)."""
    repeat = attention.n_heads // attention.n_kv_heads

    def spread(y: mx.array) -> mx.array:
        return mx.repeat(y, repeat, axis=1)  # [B, n, L, d]

    queries = queries * attention.scale
    history = queries @ spread(keys[0]).swapaxes(-1, -2)  # [B, n, L, L]
    visible = mx.arange(length)[:, None] >= mx.arange(length)[None, :]
    history = mx.where(visible, history, mx.array(-mx.inf, dtype=history.dtype))
    own = [mx.sum(queries * spread(key), axis=-1, keepdims=True) for key in keys[1:]]  # each [B, n, L, 1]
    weights = mx.softmax(mx.concatenate([history, *own], axis=-1), axis=-1)
    mixed = weights[..., :length] @ spread(values[0])
    for i, value in enumerate(values[1:]):
        mixed = mixed + weights[..., length + i : length + i + 1] * spread(value)
    return _merge(mixed)
