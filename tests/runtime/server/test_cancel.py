"""A client that leaves takes its work with it: running, waiting, streaming or not. And nobody waits in silence."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import httpx
import pytest

BODY = {"messages": [{"role": "user", "content": "x" * 400}]}


def send_raw(served: Any, body: dict[str, Any]) -> socket.socket:
    """A request on a socket that the test closes when it likes."""
    import json

    content = json.dumps(body).encode()
    port = int(served.url.rsplit(":", 1)[1])
    connection = socket.create_connection(("127.0.0.1", port), timeout=5.0)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def in_flight(served: Any) -> bool:
    return served.health()["queue"]["in_flight"] == 1


def test_a_stream_closed_after_two_chunks_stops(start: Callable[..., Any]) -> None:
    served = start(delay=0.05)
    with served.client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as reply:
        lines = (line for line in reply.iter_lines() if line.startswith("data:"))
        assert "assistant" in next(lines)
        assert "XXX" in next(lines)
    report = served.until_idle(2.0)
    assert report["requests"]["cancelled"] == 1
    assert report["counts"]["generated"] < 100
    assert served.chat("after").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_it_runs_stops_it(start: Callable[..., Any], stream: bool) -> None:
    served = start(delay=0.05)
    connection = send_raw(served, {**BODY, "stream": stream})
    wait_for(lambda: in_flight(served))
    connection.close()
    assert served.until_idle(2.0)["requests"]["cancelled"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_the_queue_is_never_run(start: Callable[..., Any], stream: bool) -> None:
    served = start(server={"keep_alive_seconds": 0.1})
    served.generator.gate.clear()
    first = send_raw(served, {**BODY, "stream": False})
    wait_for(lambda: in_flight(served))
    second = send_raw(served, {**BODY, "stream": stream})
    wait_for(lambda: served.health()["queue"]["queued"] == 1)
    second.close()
    wait_for(lambda: served.health()["queue"]["queued"] == 0)
    served.generator.gate.set()
    assert served.until_idle()["requests"] == {"completed": 1, "failed": 0, "refused": 0, "cancelled": 1}
    assert len(served.generator.seen) == 1
    first.close()


def test_a_client_that_leaves_during_prefill_stops_it(start: Callable[..., Any]) -> None:
    served = start(prefill_delay=30.0)
    connection = send_raw(served, {**BODY, "stream": True})
    wait_for(lambda: in_flight(served))
    connection.close()
    served.until_idle(2.0)


def test_a_request_sent_right_after_a_stop_is_served(start: Callable[..., Any]) -> None:
    served = start(delay=0.02)
    connection = send_raw(served, {**BODY, "stream": True})
    wait_for(lambda: in_flight(served))
    connection.close()
    assert served.chat("again").json()["choices"][0]["message"]["content"] == "AGAIN"


def test_comments_keep_a_stream_alive_through_a_long_prefill(start: Callable[..., Any]) -> None:
    served = start(server={"keep_alive_seconds": 0.1}, prefill_delay=0.7)
    arrivals, lines = [time.monotonic()], []
    with served.client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as reply:
        for line in reply.iter_lines():
            if line:
                arrivals.append(time.monotonic())
                lines.append(line)
    comments = [line for line in lines if line.startswith(":")]
    assert len(comments) >= 4
    assert any("prefill 0/400" in comment for comment in comments)
    assert max(after - before for before, after in pairwise(arrivals)) < 0.5
    assert all(line.startswith((":", "data: ")) for line in lines)
    assert lines[-1] == "data: [DONE]"


def test_comments_keep_a_waiting_stream_alive(start: Callable[..., Any]) -> None:
    served = start(server={"keep_alive_seconds": 0.05})
    served.generator.gate.clear()
    first = send_raw(served, BODY)
    wait_for(lambda: in_flight(served))
    threading.Timer(0.4, served.generator.gate.set).start()
    with served.client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as reply:
        lines = [line for line in reply.iter_lines() if line]
    assert lines.count(": keep-alive") >= 3
    assert lines[-1] == "data: [DONE]"
    first.close()


def test_a_full_queue_says_when_to_come_back(start: Callable[..., Any]) -> None:
    served = start(server={"queue_limit": 1})
    served.generator.gate.clear()
    connections = [send_raw(served, BODY)]
    wait_for(lambda: in_flight(served))
    connections.append(send_raw(served, BODY))
    wait_for(lambda: served.health()["queue"]["queued"] == 1)
    for stream in (False, True):
        reply = served.chat("third", stream=stream)
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "queue_full"
        assert int(reply.headers["retry-after"]) >= 1
    served.generator.gate.set()
    served.until_idle()
    assert served.chat("third").status_code == 200
    for connection in connections:
        connection.close()


def wait_for(read: Callable[[], Any], seconds: float = 3.0) -> None:
    end = time.monotonic() + seconds
    while not read():
        assert time.monotonic() < end, "not so in time"
        time.sleep(0.01)


def test_health_answers_while_requests_run(start: Callable[..., Any]) -> None:
    served = start(delay=0.02)
    connection = send_raw(served, BODY)
    wait_for(lambda: in_flight(served))
    before = time.monotonic()
    assert httpx.get(f"{served.url}/health").status_code == 200
    assert time.monotonic() - before < 1.0
    connection.close()
