import pytest

from mtrun.runtime.acceptance.counts import Counts
from mtrun.runtime.acceptance.line import accept_line
from mtrun.runtime.acceptance.rates import DEFINITIONS, rates
from mtrun.runtime.requests import LawReport


def some_counts():
    counts = Counts(generated=9, verify_calls=4)
    counts.record(3, 3, [True, False, False], [0.1, 0.2, 0.3])
    counts.record(3, 1, [False, True, True], [0.4, 0.5, 0.9])
    counts.record(3, 0, [True, True, True], [0.6, 0.9, 0.9])
    return counts


def test_each_rate_has_its_own_denominator():
    assert rates(some_counts()) == {
        "draft_acceptance": pytest.approx(4 / 9),
        "deferral_rate": pytest.approx(3 / 6),
        "kept_draft_rate": pytest.approx(4 / 6),
        "tokens_per_cycle": pytest.approx(1 + 4 / 3),
        "mean_divergence": pytest.approx(2.1 / 6),
        "accepted_by_depth": pytest.approx([2 / 3, 1 / 3, 1 / 3]),
    }


def test_no_draft_means_no_rate():
    assert set(rates(Counts()).values()) == {None}


def test_every_rate_is_defined_in_one_line():
    assert set(DEFINITIONS) == set(rates(Counts()))
    assert all(" / " in text and "\n" not in text for text in DEFINITIONS.values())


FIGURES = (
    "positions=6 accepted=4 resamples=2 deferred=3 kept_draft_rate=0.6667 defer_rate=0.5000 draft_acceptance=0.4444 "
    "mean_divergence=0.3500 tokens_per_cycle=2.3333 accepted_by_depth=0.6667,0.3333,0.3333 generated=9 verify_calls=4"
)


@pytest.mark.parametrize(
    ("law", "rule", "parameters", "exact", "head"),
    [
        ("exact", None, {}, True, "[exact-accept] distribution-exact"),
        (
            "cascade",
            "tokenv3",
            {"alpha": 0.95},
            False,
            "[cascade-accept] NOT distribution-exact rule=tokenv3 alpha=0.95",
        ),
        (
            *("typical", None, {"threshold": 0.2, "eps": 1.0}, False),
            "[typical-accept] NOT distribution-exact threshold=0.2 eps=1",
        ),
        (
            *("typical-pi", None, {"threshold": 0.2, "eps": 0.3}, False),
            "[typical-pi-accept] NOT distribution-exact threshold=0.2 eps=0.3",
        ),
        (
            *("synthetic", None, {"rate": 0.7}, False),
            "[synthetic-accept] NOT distribution-exact, no real text law rate=0.7",
        ),
    ],
)
def test_the_line_of_each_law(law, rule, parameters, exact, head):
    report = LawReport(law, rule, parameters, exact, True, "engaged")
    assert accept_line(report, some_counts()) == f"{head} {FIGURES}"


def test_off_the_draft_path_the_line_credits_no_law():
    report = LawReport("cascade", "tokenv3", {"alpha": 0.95}, False, False, "depth 0")
    line = accept_line(report, Counts(generated=5, verify_calls=5))
    assert line.startswith("[cascade-accept] off the draft path (depth 0) rule=tokenv3 alpha=0.95 positions=0")
    assert "distribution-exact" not in line
    assert "defer_rate=n/a" in line
    assert line.endswith("accepted_by_depth=n/a generated=5 verify_calls=5")


def test_greedy_matching_is_reported_as_not_engaged():
    report = LawReport("cascade", "tokenv3", {"alpha": 0.95}, False, False, "temperature 0 is matched greedily")
    line = accept_line(report, some_counts())
    assert line.startswith("[cascade-accept] not engaged (temperature 0 is matched greedily) rule=tokenv3")
    assert "\n" not in line
