"""An independent float64 reference of every law, written from the definitions in numpy, and rows to try them on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import numpy as np
import pytest

from mtrun.runtime.acceptance.law import Block
from mtrun.runtime.acceptance.table import build_law

LAWS = {
    "exact": build_law("exact"),
    "opt 0": build_law("cascade", rule="opt", alpha=0.0),
    "opt 0.4": build_law("cascade", rule="opt", alpha=0.4),
    "tokenv1 0.1": build_law("cascade", rule="tokenv1", alpha=0.1),
    "tokenv2 0.2": build_law("cascade", rule="tokenv2", alpha=0.2),
    "tokenv2 0.9": build_law("cascade", rule="tokenv2", alpha=0.9),
    "tokenv3 0": build_law("cascade", rule="tokenv3", alpha=0.0),
    "tokenv3 0.6": build_law("cascade", rule="tokenv3", alpha=0.6),
    "typical": build_law("typical", threshold=0.7),
    "typical eps": build_law("typical", threshold=0.9, eps=0.15),
    "typical-pi": build_law("typical-pi", threshold=0.7),
    "synthetic": build_law("synthetic", rate=0.35),
}


@dataclass(frozen=True)
class Reference:
    """One position under one law: for every drafted v its keep probability and deferral, and the emitted law."""

    keep: np.ndarray  # [U] a(v)
    deferred: np.ndarray  # [U] bool
    emitted: np.ndarray  # [U] e

    def keep_rate(self, q: np.ndarray) -> float:
        return float((q * self.keep).sum())


def keep_set(law, p, q) -> np.ndarray:
    match law.name, law.rule:
        case "exact", _:
            return np.zeros(p.shape, bool)
        case "cascade", "opt":
            defer = q.max() < p.max() - law.alpha * np.maximum(p - q, 0).sum()
            return np.full(p.shape, not defer)
        case "cascade", "tokenv1":
            return q >= p.max() - law.alpha
        case "cascade", "tokenv2":
            return (p >= p.max() - law.alpha) & (p > 0)
        case "cascade", "tokenv3":
            return p >= (1 - law.alpha) * p.max()
    inside = p[p > 0]
    return p > min(law.eps, law.threshold * math.exp((inside * np.log(inside)).sum()))


def law_reference(law, p, q) -> Reference:
    if law.name == "synthetic":
        keep = np.full(p.shape, law.rate)
        return Reference(keep, np.ones(p.shape, bool), law.rate * q + (1 - law.rate) * p)
    inside = keep_set(law, p, q)
    pi = q * inside + q[~inside].sum() * p
    if law.name == "typical":
        return Reference(inside.astype(float), ~inside, pi)
    ratio = np.divide(pi, q, out=np.ones_like(pi), where=q > 0)
    return Reference(np.minimum(ratio, 1), ~inside, pi)


def block_of(p, q, drafted, coins, dtype="float64", xp=mx) -> Block:
    p, q, dtype = np.atleast_2d(p), np.atleast_2d(q), getattr(xp, dtype)
    return Block(
        xp.array(p, dtype=dtype),
        xp.array(q, dtype=dtype),
        xp.array(np.atleast_1d(drafted), dtype=xp.int32),
        xp.array(np.atleast_1d(coins), dtype=dtype),
    )


def random_pairs(count: int, size: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Target and draft rows, some peaked, some filtered down to disjoint supports, some drafts one-hot."""
    rng = np.random.default_rng(seed)
    pairs = []
    for i in range(count):
        rows = rng.dirichlet(np.full(size, (0.3, 1.0, 3.0)[i % 3]), size=2)
        for row in rows:
            if i % 2:
                row[rng.permutation(size)[: rng.integers(1, size - 1)]] = 0
            row /= row.sum()
        if i % 7 == 6:
            rows[1] = np.eye(size)[rng.integers(size)]
        pairs.append((rows[0], rows[1]))
    return pairs


@pytest.fixture(params=list(LAWS.values()), ids=list(LAWS))
def law(request):
    return request.param


def only(keep):
    return {"params": [law for law in LAWS.values() if keep(law)], "ids": [i for i, law in LAWS.items() if keep(law)]}


@pytest.fixture(**only(lambda law: law.name not in {"typical", "synthetic"}))
def coin_law(request):
    """Laws that execute their pi by speculative sampling."""
    return request.param


@pytest.fixture(**only(lambda law: law.name != "synthetic" and law.rule not in {"opt", "tokenv1"}))
def inside_law(request):
    """Laws that never emit what the target's filter removed."""
    return request.param


@pytest.fixture
def reference():
    return law_reference


@pytest.fixture(params=[mx, np], ids=["mlx", "numpy"])
def xp(request):
    """The module of the arrays that a law judges."""
    return request.param


@pytest.fixture
def block(xp):
    return partial(block_of, xp=xp)


@pytest.fixture
def mlx_block():
    return block_of


@pytest.fixture
def pairs():
    return random_pairs
