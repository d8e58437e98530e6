"""The application over real HTTP: uvicorn in a thread on a free port, a scripted engine behind it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from mtrun.runtime.server.serve import DrainingServer, bind, make_server
from support.fake_engine import FakeEngine, FakeServerConfig, ScriptedGenerator


@dataclass
class Served:
    engine: FakeEngine
    server: DrainingServer
    url: str
    client: httpx.Client

    @property
    def generator(self) -> ScriptedGenerator:
        return self.engine.generator

    def health(self) -> dict[str, Any]:
        return self.client.get("/health").json()

    def chat(self, content: str = "hello", **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": content}], **fields}
        return self.post("/v1/chat/completions", body)

    def post(self, path: str, body: object) -> httpx.Response:
        """JSON as Python writes it: escapes and NaN included, which httpx's own encoder refuses to send."""
        headers = {"content-type": "application/json"}
        return self.client.post(path, content=json.dumps(body).encode(), headers=headers)

    def until_idle(self, seconds: float = 2.0) -> dict[str, Any]:
        """The first health report with nothing running or waiting; fails after `seconds`."""
        return until(lambda: idle(self.health()), seconds)


def idle(report: dict[str, Any]) -> dict[str, Any] | None:
    queue = report["queue"]
    return report if queue["in_flight"] == 0 and queue["queued"] == 0 else None


def until(read: Callable[[], Any], seconds: float = 2.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = read()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not so within {seconds} s")


Launch = Callable[..., Served]


@contextmanager
def launcher() -> Iterator[Launch]:
    """Starts servers: `launch(server={...}, engine={...}, **script fields)`; all are stopped at the end."""
    running: list[tuple[Served, threading.Thread]] = []

    def launch(server: dict[str, Any] | None = None, engine: dict[str, Any] | None = None, **script: Any) -> Served:
        fake = FakeEngine(ScriptedGenerator(**script), FakeServerConfig(**(server or {})), **(engine or {}))
        listener = bind(fake.server)
        uvicorn_server = make_server(fake, grace_seconds=2.0)
        thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        until(lambda: uvicorn_server.started, 10.0)
        if fake.generator.load_gate is None and fake.generator.load_error is None:
            fake.worker.wait_ready(10.0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        served = Served(fake, uvicorn_server, url, httpx.Client(base_url=url, timeout=10.0))
        running.append((served, thread))
        return served

    yield launch
    for served, thread in running:
        served.client.close()
        served.generator.gate.set()
        if served.generator.load_gate is not None:
            served.generator.load_gate.set()
        served.server.should_exit = True
        thread.join(10.0)
        assert not thread.is_alive()
        assert served.engine.worker.snapshot().state == "dead"


@pytest.fixture
def start() -> Iterator[Launch]:
    with launcher() as launch:
        yield launch


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with launcher() as launch:
        yield launch()


@pytest.fixture
def served(shared: Served) -> Served:
    """One plain server for the tests of a module that change nothing in it."""
    shared.generator.seen.clear()
    return shared


@pytest.fixture
def make_settings() -> Callable[..., FakeServerConfig]:
    return FakeServerConfig
