"""The joint law of one cycle at depth 3, by enumeration over drafts and coins of a toy target and draft.

Rows depend on the whole prefix. Every path is judged with every pattern of coins above and below the thresholds, the
cycle's own replacement or bonus token follows, and the target continues to four tokens.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from mtrun.kernels.arrays import evaluate
from mtrun.kernels.block_verify import block_verify
from mtrun.runtime.acceptance.exact import ExactLaw
from mtrun.runtime.acceptance.law import Judgement

VOCAB, DEPTH = 3, 3


@dataclass(frozen=True)
class BlockVerification:
    """Block verification behind the face of a law."""

    name: str = "block"

    def judge(self, block):
        tau, replacement = block_verify(block.p, block.q, block.drafted, block.coins)
        return Judgement(tau, block.coins >= 0, replacement)


@dataclass(frozen=True)
class Toy:
    """Next-token rows of target and draft for every prefix of up to DEPTH tokens."""

    p: dict
    q: dict

    def rows(self, path):
        prefixes = [path[:i] for i in range(len(path))]
        return np.array([self.p[x] for x in prefixes]), np.array([self.q[x] for x in prefixes])


def toy(seed):
    rng = np.random.default_rng(seed)
    p, q = {}, {}
    for length in range(DEPTH + 1):
        for prefix in itertools.product(range(VOCAB), repeat=length):
            p[prefix], q[prefix] = rng.dirichlet(np.ones(VOCAB), size=2)
            if rng.random() < 0.3:
                p[prefix][rng.integers(VOCAB)] = 0
                p[prefix] /= p[prefix].sum()
    return Toy(p, q)


def block_thresholds(p, q, path):
    """[D] h of block verification, from its definition."""
    w = [1.0]
    for i, token in enumerate(path):
        w.append(min(1.0, w[-1] * p[i, token] / q[i, token]))
    out = []
    for i in range(1, len(path)):
        g = np.maximum(w[i] * p[i] - q[i], 0).sum()
        rest = g + (1 - w[i])
        out.append(g / rest if rest > 0 else 1.0)
    return np.array([*out, w[-1]])


def thresholds(law, reference, p, q, path):
    if law.name == "block":
        return block_thresholds(p, q, path)
    return np.array([reference(law, p[i], q[i]).keep[token] for i, token in enumerate(path)])


def outcomes(law, model, reference, block):
    """(probability, path, judgement) for every path and coin pattern of positive probability."""
    found = []
    for path in itertools.product(range(VOCAB), repeat=DEPTH):
        p, q = model.rows(path)
        drafting = np.prod([q[i, token] for i, token in enumerate(path)])
        limits = thresholds(law, reference, p, q, path)
        for below in itertools.product([True, False], repeat=DEPTH):
            chance = drafting * np.prod(np.where(below, limits, 1 - limits))
            if chance > 0:
                coins = np.where(below, limits / 2, (1 + limits) / 2)
                found.append((chance, path, law.judge(block(p, q, path, coins))))
    evaluate(*(part for _, _, judged in found for part in (judged.kept, judged.replacement)))
    return found


def committed(model, path, kept, replacement):
    """[V, V, V, V] law of four tokens after `kept` drafts: replacement or bonus, then the target."""
    following = model.p[path] if kept == DEPTH else replacement / replacement.sum()
    joint = np.zeros((VOCAB,) * (DEPTH + 1))
    for token in np.flatnonzero(following):
        prefix = (*path[:kept], int(token))
        joint[prefix] += following[token] * continuation(model, prefix)
    return joint


def continuation(model, prefix):
    """Law of the tokens up to four that the target adds to a prefix."""
    if len(prefix) > DEPTH:
        return np.array(1.0)
    return np.stack([model.p[prefix][v] * continuation(model, (*prefix, v)) for v in range(VOCAB)])


def recursion(law, model, reference, prefix=()):
    """The same joint law from the one-position law: kept mass goes on drafting, rejected mass goes to the target."""
    if len(prefix) == DEPTH:
        return continuation(model, prefix)
    one = reference(law, model.p[prefix], model.q[prefix])
    kept = model.q[prefix] * one.keep
    return np.stack(
        [
            kept[v] * recursion(law, model, reference, (*prefix, v))
            + (one.emitted[v] - kept[v]) * continuation(model, (*prefix, v))
            for v in range(VOCAB)
        ]
    )


def enumerated(law, model, reference, block):
    joint = np.zeros((VOCAB,) * (DEPTH + 1))
    for chance, path, judged in outcomes(law, model, reference, block):
        kept = judged.kept.item()
        joint += chance * committed(model, path, kept, np.array(judged.replacement)[min(kept, DEPTH - 1)])
    return joint


@pytest.mark.parametrize("seed", [0, 1])
def test_joint_law_is_the_recursion(law, seed, reference, block):
    model = toy(seed)
    joint = enumerated(law, model, reference, block)
    assert joint.sum() == pytest.approx(1, abs=1e-12)
    assert np.abs(joint - recursion(law, model, reference)).max() <= 1e-12
    if law.distribution_exact:
        assert np.abs(joint - continuation(model, ())).max() <= 1e-12


def test_the_lossy_laws_of_these_toys_are_really_lossy(law, reference):
    distance = np.abs(recursion(law, toy(0), reference) - continuation(toy(0), ())).max()
    assert (distance > 1e-3) == (not law.distribution_exact)


@pytest.mark.parametrize("seed", range(4))
def test_block_verification_is_the_target(seed, reference, block):
    model = toy(seed)
    joint = enumerated(BlockVerification(), model, reference, block)
    assert np.abs(joint - continuation(model, ())).max() <= 1e-12


def expected_kept(law, model, reference, block):
    return sum(chance * judged.kept.item() for chance, _, judged in outcomes(law, model, reference, block))


@pytest.mark.parametrize("seed", range(4))
def test_block_verification_keeps_at_least_as_many_drafts(seed, reference, block):
    model = toy(seed)
    per_position = expected_kept(ExactLaw(), model, reference, block)
    assert expected_kept(BlockVerification(), model, reference, block) >= per_position - 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_block_thresholds_are_sharp(seed, block):
    """One coin moves across its threshold while the others reject: tau follows it and nothing else."""
    model, law, below_one = toy(seed), BlockVerification(), np.nextafter(1.0, 0.0)
    for path in itertools.product(range(VOCAB), repeat=DEPTH):
        p, q = model.rows(path)
        limits = block_thresholds(p, q, path)
        for i in range(DEPTH):
            for nudge in (-1e-12, 1e-12):
                coins = np.full(DEPTH, below_one)
                coins[i] = np.clip(limits[i] + nudge, 0, below_one)
                expected = max((j + 1 for j in range(DEPTH) if coins[j] < limits[j]), default=0)
                assert law.judge(block(p, q, path, coins)).kept.item() == expected
