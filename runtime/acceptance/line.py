"""The one log line of a request: which law made the reply, what it counted, what that amounts to."""

from __future__ import annotations

from mtrun.runtime.acceptance.counts import Counts
from mtrun.runtime.acceptance.rates import Rate, rates
from mtrun.runtime.requests import LawReport


def accept_line(report: LawReport, counts: Counts) -> str:
    """One line, `key=value` fields in a fixed order; a rate without a denominator prints `n/a`."""
    derived = rates(counts)
    figures = [
        f"positions={counts.positions}",
        f"accepted={counts.accepted}",
        f"resamples={counts.resamples}",
        f"deferred={counts.deferred}",
        f"kept_draft_rate={_figure(derived['kept_draft_rate'])}",
        f"defer_rate={_figure(derived['deferral_rate'])}",
        f"draft_acceptance={_figure(derived['draft_acceptance'])}",
        f"mean_divergence={_figure(derived['mean_divergence'])}",
        f"tokens_per_cycle={_figure(derived['tokens_per_cycle'])}",
        f"accepted_by_depth={_figure(derived['accepted_by_depth'])}",
        f"generated={counts.generated}",
        f"verify_calls={counts.verify_calls}",
    ]
    return " ".join([f"[{report.law}-accept]", _standing(report, counts), *_dials(report), *figures])


def _standing(report: LawReport, counts: Counts) -> str:
    """What may be said of the reply's distribution. A law that did not decide is credited with nothing."""
    if not report.engaged:
        path = "off the draft path" if counts.cycles == 0 else "not engaged"
        return f"{path} ({report.reason})"
    if report.law == "synthetic":
        return "NOT distribution-exact, no real text law"
    return "distribution-exact" if report.distribution_exact else "NOT distribution-exact"


def _dials(report: LawReport) -> list[str]:
    rule = [] if report.rule is None else [f"rule={report.rule}"]
    return rule + [f"{name}={value:g}" for name, value in report.parameters.items()]


def _figure(rate: Rate) -> str:
    if rate is None:
        return "n/a"
    return ",".join(f"{share:.4f}" for share in rate) if isinstance(rate, list) else f"{rate:.4f}"
