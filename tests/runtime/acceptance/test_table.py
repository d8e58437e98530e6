import math

import pytest

from mtrun.runtime.acceptance.cascade import RULES
from mtrun.runtime.acceptance.law import AcceptanceLaw
from mtrun.runtime.acceptance.table import LAWS, build_law
from mtrun.runtime.errors import ConfigurationError

WORKING = {
    "exact": {},
    "typical": {"threshold": 0.2},
    "typical-pi": {"threshold": 0.2, "eps": 0.3},
    "cascade": {"rule": "tokenv3", "alpha": 0.95},
    "synthetic": {"rate": 0.7},
}


@pytest.mark.parametrize("name", list(LAWS))
def test_every_law_builds_and_reports_the_knobs_it_was_given(name):
    law: AcceptanceLaw = build_law(name, **WORKING[name])
    given = {key: value for key, value in WORKING[name].items() if key != "rule"}
    assert law.name == name
    assert law.rule == WORKING[name].get("rule")
    assert given.items() <= law.parameters.items()
    assert law.distribution_exact == (name == "exact")
    assert law.composes_with_block == (name == "exact")
    assert not law.joint


@pytest.mark.parametrize("rule", list(RULES))
def test_alpha_zero_is_on(rule):
    assert build_law("cascade", rule=rule, alpha=0).parameters == {"alpha": 0.0}


def test_unset_eps_never_binds():
    assert build_law("typical", threshold=0.2).parameters == {"threshold": 0.2, "eps": 1.0}


def test_an_underscore_reads_as_a_hyphen():
    assert build_law("typical_pi", threshold=0.2).name == "typical-pi"


NOT_A_NUMBER = [math.nan, math.inf, -math.inf, True, False, "0.5", -0.1]


@pytest.mark.parametrize("value", NOT_A_NUMBER, ids=repr)
@pytest.mark.parametrize("rule", list(RULES))
def test_alpha_outside_its_domain_says_the_range(rule, value):
    with pytest.raises(ConfigurationError, match=r"cascade\.alpha=.* at least 0 and below 1: type"):
        build_law("cascade", rule=rule, alpha=value)


@pytest.mark.parametrize("value", [1, 1.0, 2.0])
@pytest.mark.parametrize("rule", list(RULES))
def test_accept_all_alphas_name_synthetic(rule, value):
    with pytest.raises(ConfigurationError, match=r"below 1.*acceptance=synthetic"):
        build_law("cascade", rule=rule, alpha=value)


@pytest.mark.parametrize("value", [*NOT_A_NUMBER, 0, 1.01], ids=repr)
@pytest.mark.parametrize("law", ["typical", "typical-pi"])
@pytest.mark.parametrize("knob", ["threshold", "eps"])
def test_typical_knobs_outside_their_domain_say_the_range(law, knob, value):
    knobs = {"threshold": 0.2, knob: value}
    with pytest.raises(ConfigurationError, match=rf"typical\.{knob}=.* above 0 and at most 1"):
        build_law(law, **knobs)


@pytest.mark.parametrize("value", [*NOT_A_NUMBER, 1.01], ids=repr)
def test_synthetic_rate_outside_its_domain_says_the_range(value):
    with pytest.raises(ConfigurationError, match=r"synthetic\.rate=.* from 0 to 1"):
        build_law("synthetic", rate=value)


@pytest.mark.parametrize(
    ("law", "knobs", "names"),
    [
        ("cascade", {"rule": "opt"}, "cascade.alpha=0.95"),
        ("cascade", {"alpha": 0.5}, "cascade.rule=tokenv3"),
        ("cascade", {"alpha": 0.5, "rule": "tokenv4"}, "opt, tokenv1, tokenv2, tokenv3"),
        ("typical", {}, "typical.threshold=0.2"),
        ("synthetic", {}, "synthetic.rate=0.7"),
        ("greedy", {}, "exact, typical, typical-pi, cascade, synthetic"),
        ("exact", {"alpha": 0.5}, "acceptance=cascade"),
        ("cascade", {"rule": "opt", "alpha": 0.5, "threshold": 0.2}, "acceptance=typical"),
    ],
)
def test_missing_unknown_and_idle_settings_name_the_fix(law, knobs, names):
    with pytest.raises(ConfigurationError) as caught:
        build_law(law, **knobs)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)
