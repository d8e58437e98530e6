"""GET /health, /verdicts, /metrics, /v1/models: one story, told from the served counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families


def test_health_tells_law_rates_and_where_they_came_from(start: Callable[..., Any]) -> None:
    served = start()
    before = served.health()
    assert before["rates"]["draft_acceptance"] is None
    served.chat("twelve bytes")
    report = served.until_idle()
    assert report["status"] == "ok"
    assert report["acceptance"]["rule"] == "tokenv3"
    assert report["acceptance"]["parameters"] == {"alpha": 0.95}
    assert report["acceptance"]["decided_by"]["alpha"]["source"] == "command line"
    assert report["acceptance"]["engaged_requests"] == 1
    assert report["rates"]["draft_acceptance"] == 1.0
    assert set(report["definitions"]) == set(report["rates"])
    assert report["sampler"]["temperature"] == 0.7
    assert report["lanes"]["lanes"][0]["lane"] == "frspec"
    assert report["queue"] == {"limit": 32, "queued": 0, "in_flight": 0}
    assert report["server"]["port"] == int(served.url.rsplit(":", 1)[1])
    assert report["memory"] == {"active_bytes": 0, "limit_bytes": None}


def test_totals_are_the_sum_of_the_replies_and_keep_the_identities(start: Callable[..., Any]) -> None:
    served = start()
    replies = [served.chat("x" * size).json()["mtrun"]["counts"] for size in range(1, 21)]
    totals = served.until_idle()["counts"]
    for name, value in totals.items():
        parts = [reply[name] for reply in replies]
        expected = [sum(column) for column in zip(*parts, strict=True)] if isinstance(value, list) else sum(parts)
        assert value == expected, name
    assert totals["accepted"] + totals["resamples"] == totals["positions"]
    assert totals["resamples"] <= totals["deferred"] <= totals["positions"]
    assert totals["emitted"] == totals["accepted"] + totals["cycles"]


def test_verdicts_are_the_engines_audit(served: Any) -> None:
    assert served.client.get("/verdicts").json() == served.engine.audit()


def test_models_lists_the_one_that_is_served(served: Any) -> None:
    entry = {"id": "tiny/fake", "object": "model", "created": 1_700_000_000, "owned_by": "mtrun"}
    assert served.client.get("/v1/models").json() == {"object": "list", "data": [entry]}
    assert served.client.get("/v1/models/tiny/fake").json() == entry
    assert served.client.get("/v1/models/other").status_code == 404


def test_metrics_hold_lanes_counters_and_outcomes(start: Callable[..., Any]) -> None:
    served = start()
    served.chat("abcdef")
    served.until_idle()
    text = served.client.get("/metrics").text
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples[("mtrun_lane_info", "armed", "frspec", "proved")] == 1
    assert samples[("mtrun_requests_total", "completed")] == 1
    assert samples[("mtrun_draft_generated_total",)] == 6
    assert samples[("mtrun_draft_accepted_by_depth_total", "1")] == 2
    assert samples[("mtrun_up",)] == 1


def test_two_servers_in_one_process_count_apart(start: Callable[..., Any]) -> None:
    first, second = start(), start()
    first.chat()
    assert first.until_idle()["requests"]["completed"] == 1
    assert second.health()["requests"]["completed"] == 0
    assert 'outcome="completed"} 0.0' in second.client.get("/metrics").text


def test_health_answers_when_the_engine_cannot(start: Callable[..., Any]) -> None:
    from mtrun.runtime.errors import StampError

    served = start()

    def unready() -> dict[str, Any]:
        raise StampError("lanes without a verdict: frspec")

    served.engine.audit = unready
    assert served.health()["lanes"] == {"unavailable": "lanes without a verdict: frspec"}
    assert served.client.get("/metrics").status_code == 200
    assert served.client.get("/verdicts").status_code == 503
