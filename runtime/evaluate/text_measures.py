"""What a text shows of the law that made it: read once by the target, which prices every token and says what it allows.

A law that is not distribution-exact may emit what the target's own sampler removed (off-support mass), lean to the
likeliest token (mode mass), or keep drafts far from the target (total variation). The KL divergence of such a law is
infinite on many rows and is not reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from mtrun.runtime.acceptance.counts import Counts, pooled
from mtrun.runtime.acceptance.rates import Rate, mean_divergence, rates
from mtrun.runtime.measure.stats import Interval, Values, interval_of, seed_means
from mtrun.runtime.requests import Sampling

if TYPE_CHECKING:
    from mtrun.runtime.packs.contract import Trunk

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "nll": "nats a token: mean of -log p(token), p the target's row at temperature 1 without filter and penalties",
        "off_support_mass": "share of tokens that the target's own row, filtered by the sampler, gives probability 0",
        "mode_mass": "share of tokens that are the argmax of the target's row",
        "tv": "mean D_TV(p, q) over decided draft positions, from the counters; none where nothing was drafted",
        "output_tokens": "tokens of a text",
        "distinct1": "different tokens / tokens of a text",
        "distinct2": "different pairs of neighbouring tokens / pairs",
        "distinct3": "different runs of three tokens / runs",
    }
)
ROWS = 64  # vocabulary rows held at a time

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Reading:
    """What the target says of one text of n tokens."""

    tokens: int
    nll_sum: float  # nats
    off_support: int  # tokens
    mode: int  # tokens


def read_text(trunk: Trunk, prompt_ids: Sequence[int], ids: Sequence[int], sampling: Sampling) -> Reading:
    """Reads ids [n], n >= 1, after prompt_ids [P], P >= 1, in one forward over fresh caches of the trunk's own kind.

    The rows are those that decoding saw where a forward's rounding does not depend on how many rows it has; where it
    does, a token on the very edge of the filter may be counted off the support.
    """
    from mtrun.kernels.arrays import cast, of_module
    from mtrun.runtime.decode.penalties import Adjuster

    xp = trunk.xp
    fed = xp.array([[*prompt_ids, *ids[:-1]]], dtype=xp.int32)  # [1, P + n - 1]
    hidden = trunk.forward(fed, trunk.new_caches(), "none").hidden[0, len(prompt_ids) - 1 :]  # [n, H]
    adjust = Adjuster(sampling, prompt_ids, trunk.vocab_size)
    nll, outside, likeliest = 0.0, 0, 0
    for start in range(0, len(ids), ROWS):
        chosen = list(ids[start : start + ROWS])
        rows = of_module(cast(trunk.project(hidden[start : start + ROWS]), xp.float32), np)  # [R, V]
        nll += _nll(rows, chosen)
        rows = _adjusted(rows, chosen, adjust)
        outside += _outside(rows, chosen, sampling)
        likeliest += int((rows.argmax(axis=-1) == chosen).sum())
    return Reading(len(ids), nll, outside, likeliest)


def _nll(rows: np.ndarray, chosen: Sequence[int]) -> float:
    from mtrun.kernels.arrays import logsumexp, pick

    wide = rows.astype(np.float64)
    return float((logsumexp(wide)[:, 0] - pick(wide, chosen)).sum())


def _adjusted(rows: np.ndarray, chosen: Sequence[int], adjust: Any) -> np.ndarray:
    """Rows [R, V] with penalties and bias, each seeing the tokens before its own."""
    if not adjust.active:
        return rows
    out = []
    for row, token in zip(rows, chosen, strict=True):
        out.append(adjust(row[None], None))
        adjust.commit([token])
    return np.concatenate(out)


def _outside(rows: np.ndarray, chosen: Sequence[int], sampling: Sampling) -> int:
    """How many chosen tokens have probability 0 in their filtered rows."""
    from mtrun.kernels.rows import RowFilter, filter_rows

    how = RowFilter(sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
    kept = filter_rows(rows, how)
    tokens = np.array(chosen)[:, None]
    slots = np.arange(rows.shape[-1])[None] if kept.ids is None else kept.ids
    inside = ((slots == tokens) & (np.asarray(kept.probs) > 0)).any(axis=-1)
    return int((~inside).sum())


def distinct(ids: Sequence[int], n: int) -> float | None:
    """Different n-grams of token ids / n-grams; None for a text of fewer than n tokens."""
    grams = [tuple(ids[at : at + n]) for at in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None


def measures(ids: Sequence[int], counts: Mapping[str, Any], reading: Reading) -> dict[str, Any]:
    """The figures of one text by the names of `DEFINITIONS`, and the sum that the mean NLL comes from."""
    return {
        "nll": reading.nll_sum / reading.tokens,
        "nll_sum": reading.nll_sum,
        "off_support_mass": reading.off_support / reading.tokens,
        "mode_mass": reading.mode / reading.tokens,
        "tv": mean_divergence(Counts.of_json(counts)),
        **{f"distinct{n}": distinct(ids, n) for n in (1, 2, 3)},
    }


def figure(lines: Lines, name: str) -> Values:
    """One figure of each text by (seed, prompt), where it has one."""
    return {(line["seed"], line["prompt"]): line[name] for line in lines if line[name] is not None}


def interval(values: Values) -> Interval | None:
    """Student t over seed means; without bounds where scipy is absent, None without any value."""
    try:
        return interval_of(values)
    except ImportError:
        means = list(seed_means(values).values())
        return Interval(sum(means) / len(means), None, None, len(means))


def pooled_rates(lines: Iterable[Mapping[str, Any]]) -> dict[str, Rate]:
    """The rates of the summed counters."""
    return rates(pooled(lines))
