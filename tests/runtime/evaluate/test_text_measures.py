"""What is said of a text: by hand on a model of four rows, and on a tiny pack under laws that promise something."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtrun.runtime.acceptance.table import build_law
from mtrun.runtime.evaluate.text_measures import (
    DEFINITIONS,
    ROWS,
    Reading,
    distinct,
    figure,
    interval,
    measures,
    pooled_rates,
    read_text,
)
from mtrun.runtime.measure.window import score
from mtrun.runtime.packs.contract import TrunkOut
from mtrun.runtime.requests import Sampling
from support.host_parts import host_parts
from support.tiny_parts import decoder, events, finished, request, tiny_parts, tokens

# Row i: what follows token i. Every figure below is computed by hand from these.
TABLE = np.array(
    [
        [0.50, 0.30, 0.15, 0.05],
        [0.10, 0.20, 0.30, 0.40],
        [0.25, 0.25, 0.40, 0.10],
        [0.70, 0.10, 0.10, 0.10],
    ]
)
SAMPLER = {"top_p": 0.95, "top_k": 20}


class TableTrunk:
    """A model whose next token depends on the last one alone; hidden states are the tokens, one-hot."""

    vocab_size = hidden_size = 4
    context_limit = 512

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def new_caches(self) -> list[Any]:
        return []

    def forward(self, ids: Any, caches: Any, logits: str) -> TrunkOut:
        assert logits == "none", "the rows of the prompt are not needed"
        hidden = np.eye(4, dtype=np.float32)[np.array(ids)]
        return TrunkOut(self.xp.array(hidden), None)

    def project(self, hidden: Any) -> Any:
        return hidden @ self.xp.array(np.log(TABLE).astype(np.float32))


@pytest.fixture(params=[np, mx], ids=["numpy", "mlx"])
def trunk(request: pytest.FixtureRequest) -> TableTrunk:
    return TableTrunk(request.param)


def read(trunk: Any, ids: Sequence[int], prompt: Sequence[int] = (2, 0), **sampling: Any) -> Reading:
    return read_text(trunk, prompt, ids, Sampling(**sampling))


def test_tokens_are_priced_by_the_unfiltered_row(trunk: TableTrunk) -> None:
    """0 -> 1 -> 3 -> 2 -> 2 costs .3, .4, .1, .4, whatever the sampler left of the rows."""
    found = read(trunk, [1, 3, 2, 2], temperature=0.5, top_k=1)
    assert found.nll_sum == pytest.approx(-math.log(0.3 * 0.4 * 0.1 * 0.4), abs=1e-6)
    assert found.tokens == 4
    assert found.mode == 2, "1 -> 3 and 2 -> 2 are the likeliest"


@pytest.mark.parametrize(
    ("sampling", "outside"),
    [
        ({}, 0),
        ({"top_k": 2}, 2),  # the third of row 0, and one of three equal ones in row 3 that is not the first two ids
        ({"top_k": 1}, 3),
        ({"top_p": 0.8}, 1),  # row 0 keeps .5 and .3; row 1 keeps .4, .3 and .2; row 3 the first of its equals
        ({"min_p": 0.5}, 2),
        ({"temperature": 0.0}, 3),
        ({"temperature": 0.5, "top_p": 0.9}, 2),  # sharper: row 0 is .68, .25, .06, .01
    ],
)
def test_what_the_sampler_removed_is_off_the_support(trunk: TableTrunk, sampling: Any, outside: int) -> None:
    """0 -> 2 (.15), 2 -> 1 (.25), 1 -> 3 (.4, the likeliest), 3 -> 1 (.1)."""
    assert read(trunk, [2, 1, 3, 1], **sampling).off_support == outside


def test_penalties_move_the_support_and_not_the_price(trunk: TableTrunk) -> None:
    """A repeated 2 is the likeliest after 2; the penalty puts it behind 0 and 1 from the second time on."""
    plain, penalised = (read(trunk, [2, 2, 2], top_k=1, presence_penalty=penalty) for penalty in (0.0, 1.0))
    assert (plain.off_support, plain.mode) == (1, 2)
    assert (penalised.off_support, penalised.mode) == (3, 0)
    assert penalised.nll_sum == plain.nll_sum
    biased = read(trunk, [2, 2, 2], top_k=1, logit_bias={2: 5.0})
    assert (biased.off_support, biased.mode) == (0, 3)


def test_a_text_longer_than_the_rows_held_at_a_time_is_read_whole(trunk: TableTrunk) -> None:
    ids = [0] * (2 * ROWS + 3)
    found = read(trunk, ids)
    assert (found.tokens, found.mode) == (len(ids), len(ids))
    assert found.nll_sum == pytest.approx(len(ids) * math.log(2), rel=1e-6)


def test_a_reading_agrees_with_the_windows_score_in_either_kind_of_arrays(tmp_path: Path) -> None:
    parts = tiny_parts(tmp_path)
    ids = [7, 30, 2, 7, 7]
    for each in (parts, host_parts(parts)):
        found = read_text(each.trunk, [5, 9, 3], ids, Sampling(**SAMPLER))
        generator: Any = SimpleNamespace(decoder=SimpleNamespace(parts=each))
        assert found.nll_sum / len(ids) == pytest.approx(score(generator, [5, 9, 3], ids), abs=1e-5)


LAWS = {
    "exact": ("exact", {}),
    "tokenv2": ("cascade", {"rule": "tokenv2", "alpha": 0.9}),
    "tokenv3": ("cascade", {"rule": "tokenv3", "alpha": 0.95}),
    "typical": ("typical", {"threshold": 0.2, "eps": 1.0}),
    "opt": ("cascade", {"rule": "opt", "alpha": 0.75}),
}


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reading]:
    """A text of 160 tokens under each law and under plain decoding."""
    parts = tiny_parts(tmp_path_factory.mktemp("pack"), scale=2.0)
    prompt = (5, 9, 3)
    found: dict[str, Reading] = {}
    for name, (law, knobs) in {"plain": LAWS["exact"], **LAWS}.items():
        parts.law = build_law(law, **knobs)
        asked = request(prompt, max_tokens=160, ignore_eos=True, depth=0 if name == "plain" else 3, **SAMPLER)
        made = events(decoder(parts), asked)
        assert (finished(made).counts.cycles > 0) == (name != "plain")
        found[name] = read_text(parts.trunk, prompt, tokens(made), asked.sampling)
    return found


@pytest.mark.parametrize("law", ["plain", "exact", "tokenv2", "tokenv3", "typical"])
def test_a_law_that_stays_within_the_target_never_leaves_its_support(law: str, readings: dict[str, Reading]) -> None:
    assert (readings[law].tokens, readings[law].off_support) == (160, 0)


def test_a_law_that_keeps_the_drafts_own_tokens_is_seen_to_leave_it(readings: dict[str, Reading]) -> None:
    assert readings["opt"].off_support > 8
    assert readings["opt"].nll_sum > readings["plain"].nll_sum


def test_distinct_counts_different_runs_of_tokens() -> None:
    ids = [1, 2, 1, 2, 3]
    assert [distinct(ids, n) for n in (1, 2, 3)] == [3 / 5, 3 / 4, 3 / 3]
    assert distinct([4, 4, 4, 4], 2) == 1 / 3
    assert distinct([4], 2) is None


COUNTS = {"cycles": 2, "positions": 4, "divergence": 1.0, "accepted": 3, "of another version": 1}


def test_a_line_holds_every_figure_by_its_name() -> None:
    found = measures([1, 2, 1, 2], COUNTS, Reading(4, 6.0, 1, 3))
    assert found == {
        "nll": 1.5,
        "nll_sum": 6.0,
        "off_support_mass": 0.25,
        "mode_mass": 0.75,
        "tv": 0.25,
        "distinct1": 0.5,
        "distinct2": 2 / 3,
        "distinct3": 1.0,
    }
    assert set(DEFINITIONS) == {*found, "output_tokens"} - {"nll_sum"}
    assert measures([1], {}, Reading(1, 1.0, 0, 1))["tv"] is None


def test_figures_are_over_seeds_and_rates_over_all_counters() -> None:
    lines = [{"seed": seed, "prompt": prompt, "x": x, "counts": COUNTS} for seed, prompt, x in SEEN]
    values = figure(lines, "x")
    assert set(values) == {(0, 0), (0, 1), (1, 0)}
    found = interval(values)
    assert found is not None
    assert (found.value, found.n) == (3.0, 2)
    assert interval({}) is None
    assert pooled_rates(lines)["mean_divergence"] == 0.25
    assert pooled_rates(lines)["tokens_per_cycle"] == 2.5


SEEN = ((0, 0, 1.0), (0, 1, 3.0), (1, 0, 4.0), (2, 0, None))
