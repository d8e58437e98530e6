"""GET /metrics: the worker's counters and the lanes' verdicts in the Prometheus format, read when scraped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from mtrun.runtime.errors import MtrunError
from mtrun.runtime.server.api import EngineApi

_OUTCOMES = ("completed", "failed", "refused", "cancelled")


def registry_of(engine: EngineApi) -> CollectorRegistry:
    """A registry of this engine alone, so that two in one process never mix."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(engine))
    return registry


class EngineCollector(Collector):
    """Reads the engine when it is scraped."""

    def __init__(self, engine: EngineApi) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        now = self._engine.worker.snapshot()
        up = GaugeMetricFamily("mtrun_up", "1 when a request would be served", value=float(now.state == "ready"))
        yield up
        yield GaugeMetricFamily("mtrun_requests_in_flight", "requests that run now", value=now.in_flight)
        yield GaugeMetricFamily("mtrun_requests_queued", "requests that wait", value=now.queued)
        yield GaugeMetricFamily("mtrun_queue_limit", "requests that may wait", value=now.queue_limit)
        requests = CounterMetricFamily("mtrun_requests", "requests by how they ended", labels=["outcome"])
        for outcome in _OUTCOMES:
            requests.add_metric([outcome], getattr(now, outcome))
        yield requests
        yield CounterMetricFamily("mtrun_law_engaged_requests", "requests that the law decided", value=now.engaged)
        yield from _counts(asdict(now.totals))
        yield from self._lanes()

    def _lanes(self) -> Iterator[Metric]:
        try:
            lanes = self._engine.audit().get("lanes", [])
        except MtrunError:
            return  # not armed yet: mtrun_up says so
        verdicts = InfoMetricFamily("mtrun_lane", "the verdict of each lane", labels=["lane"])
        for entry in lanes:
            verdicts.add_metric([entry["lane"]], {"state": entry["state"], "code": entry.get("code") or ""})
        yield verdicts


def _counts(totals: dict[str, int | float | list[int]]) -> Iterator[Metric]:
    """One counter for each field of `Counts`; the lists get a label for the depth."""
    for name, value in totals.items():
        if isinstance(value, list):
            family = CounterMetricFamily(f"mtrun_draft_{name}", f"{name} over all requests", labels=["depth"])
            for depth, count in enumerate(value, start=1):
                family.add_metric([str(depth)], count)
        else:
            family = CounterMetricFamily(f"mtrun_draft_{name}", f"{name} over all requests", value=value)
        yield family
