"""Block verification: one joint decision over a drafted path, exact in law and never shorter than position by position.

Source: Sun et al., "Block Verification Accelerates Speculative Decoding" (arXiv 2403.10444), Algorithm 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mtrun.kernels.arrays import cast, namespace, pick


def path_weights(p: Any, q: Any, drafted: Any) -> Any:
    """[D + 1] w_0 = 1, w_i = min(1, w_{i-1} p_i(x_i) / q_i(x_i)) for rows [D, U] and drafted slots [D].

    The running minimum keeps a path from saving up ratios above 1. q_i(x_i) = 0 breaks the caller's contract; its
    ratio counts as 0.
    """
    xp = namespace(p)
    target, draft = pick(p, drafted), pick(q, drafted)
    possible = draft > 0
    ratio = xp.where(possible, target / xp.where(possible, draft, 1), 0)  # [D]
    weights = [xp.ones((), dtype=p.dtype)]
    for i in range(drafted.shape[0]):
        weights.append(xp.minimum(weights[-1] * ratio[i], 1))
    return xp.stack(weights)


def keep_probabilities(weights: Any, surplus: Any) -> Any:
    """[D] h_i, i = 1..D, from path weights [D + 1] and surplus [D], where surplus[i] is g of row i + 1.

    h_D = w_D; for i < D, h_i = g / (g + 1 - w_i) with 0 / 0 = 1.
    """
    xp = namespace(weights)
    inner, last = weights[1:-1], weights[-1:]
    gain = surplus[1:]
    rest = gain + (1 - inner)  # in this order: g + 1 - w would round a small g away where w = 1
    ratio = xp.where(rest > 0, gain / xp.where(rest > 0, rest, 1), 1)
    return xp.concatenate([ratio, last])


def block_verify(p: Any, q: Any, drafted: Any, coins: Any) -> tuple[Any, Any]:
    """Judges one drafted path on MLX arrays (lazy) or numpy arrays.

    p, q: [D, U] target and draft rows, row i on its own union of supports (slots may differ between rows).
    drafted: [D] int32 slots; coins: [D] uniforms in [0, 1).
    Returns tau [] int32, the number of drafts to keep (the largest i whose coin succeeds, 0 if none), and replacement
    [D, U]: row tau holds unnormalised weights max(0, w_tau p - q) of the token that follows when tau < D, or p itself
    where rounding leaves no positive weight; no other row may be used.
    """
    xp, depth = namespace(p), drafted.shape[0]
    weights = path_weights(p, q, drafted)
    left_over = xp.maximum(weights[:-1, None] * p - q, 0)  # [D, U]
    surplus = xp.sum(left_over, axis=-1)  # [D] g of row i + 1 under w_i
    succeeded = coins < keep_probabilities(weights, surplus)
    tau = cast(xp.max(xp.where(succeeded, xp.arange(1, depth + 1), 0)), xp.int32)
    return tau, xp.where(surplus[:, None] > 0, left_over, p)


def reference(p: np.ndarray, q: np.ndarray, drafted: np.ndarray, coins: np.ndarray) -> tuple[int, np.ndarray]:
    """The same rule in plain numpy loops, float64: what proofs and tests hold `block_verify` against.

    p, q: [D, U]; drafted: [D] slots; coins: [D]. Returns tau and, where tau < D, the unnormalised weights [U] of
    the token that follows.
    """
    depth = len(drafted)
    weights = [1.0]  # w_0..w_D
    for i, slot in enumerate(drafted):
        weights.append(min(1.0, weights[-1] * p[i, slot] / q[i, slot]))
    tau = 0
    for i in range(1, depth + 1):
        if i == depth:
            keep = weights[depth]
        else:
            surplus = np.maximum(weights[i] * p[i] - q[i], 0).sum()
            rest = surplus + (1 - weights[i])
            keep = surplus / rest if rest > 0 else 1.0
        if coins[i - 1] < keep:
            tau = i
    if tau == depth:
        return tau, p[depth - 1]
    left_over = np.maximum(weights[tau] * p[tau] - q[tau], 0)
    return tau, left_over if left_over.sum() > 0 else p[tau]
