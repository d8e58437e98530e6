"""Hand-computed vectors: one drafted token each, with its deferral, keep probability and replacement law."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from mtrun.kernels.rows import draw
from mtrun.runtime.acceptance.cascade import CascadeLaw
from mtrun.runtime.acceptance.exact import ExactLaw
from mtrun.runtime.acceptance.typical import TypicalLaw, TypicalPiLaw

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "acceptance.json").read_text())["vectors"]
TYPICAL = {"typical": TypicalLaw, "typical-pi": TypicalPiLaw}
BELOW_ONE = np.nextafter(1.0, 0.0)


def law_of(vector):
    rule, knobs = vector["rule"], vector["params"]
    if rule == "exact":
        return ExactLaw()
    if rule in TYPICAL:
        return TYPICAL[rule](knobs["delta"], knobs.get("eps", 1.0))
    return CascadeLaw(rule, knobs["alpha"])


def exact_row(fractions):
    return np.array([float(Fraction(each)) for each in fractions])


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["id"] for vector in VECTORS])
def test_vector(vector, block, xp):
    p, q, law = exact_row(vector["p_exact"]), exact_row(vector["q_exact"]), law_of(vector)
    accept = float(Fraction(vector["accept_exact"]))

    def judge(coin):
        return law.judge(block(p, q, vector["v"], coin))

    assert judge(0.5).deferred.tolist() == [vector["defer"]]
    if accept > 0:
        assert judge(min(accept * (1 - 1e-14), BELOW_ONE)).kept.item() == 1
        assert judge(0.0).kept.item() == 1
    if accept < 1:
        assert judge(accept + 1e-14).kept.item() == 0
        assert judge(BELOW_ONE).kept.item() == 0
    if vector["residual_exact"] is not None:
        weights = np.array(judge(0.5).replacement)[0]
        np.testing.assert_allclose(weights / weights.sum(), exact_row(vector["residual_exact"]), rtol=0, atol=1e-14)
        drawn = draw(xp.array(weights[None], dtype=xp.float64), xp.array([BELOW_ONE], dtype=xp.float64)).item()
        assert weights[drawn] > 0
    assert np.array(judge(0.5).replacement).max() > 0


def test_every_law_of_the_paper_has_vectors():
    assert {vector["rule"] for vector in VECTORS} == {
        *("exact", "opt", "tokenv1", "tokenv2", "tokenv3", "typical", "typical-pi")
    }
    assert len(VECTORS) == 47
