"""Faults: what fails alone, what kills the thread, what the client hears, what the log keeps to itself."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

from mtrun.runtime.errors import LaneError


def test_a_fault_fails_its_request_alone(start: Callable[..., Any]) -> None:
    served = start(faults={"broken": RuntimeError("secret words")})
    replies = [served.chat(word) for word in ("one", "two", "broken", "four", "five")]
    assert [reply.status_code for reply in replies] == [200, 200, 500, 200, 200]
    error = replies[2].json()["error"]
    assert error["code"] == "internal_error"
    assert "secret" not in error["message"]
    assert served.health()["requests"] == {"completed": 4, "failed": 1, "refused": 0, "cancelled": 0}


def test_a_fault_inside_a_stream_is_an_error_event_and_no_done(start: Callable[..., Any]) -> None:
    served = start(faults={"broken": RuntimeError("secret")})
    reply = served.chat("broken stream", stream=True)
    assert reply.status_code == 200
    lines = [line for line in reply.text.splitlines() if line]
    assert lines[-2] == "event: error"
    assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "internal_error"
    assert "[DONE]" not in reply.text
    assert "secret" not in reply.text


def test_the_official_client_raises_on_the_error_event(start: Callable[..., Any]) -> None:
    served = start(faults={"broken": RuntimeError()})
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=10.0) as client:
        stream = client.chat.completions.create(
            model="tiny/fake", messages=[{"role": "user", "content": "broken"}], stream=True
        )
        with pytest.raises(openai.APIError, match="failed on this request"):
            list(stream)


@pytest.mark.parametrize("stream", [False, True])
def test_a_dead_thread_is_unhealthy_and_refuses_at_once(start: Callable[..., Any], stream: bool) -> None:
    served = start(faults={"deadly": SystemExit("gone")})
    served.generator.gate.clear()
    replies: list[Any] = []
    asked = [
        threading.Thread(target=lambda word=word: replies.append(served.chat(word))) for word in ("deadly", "next")
    ]
    for number, thread in enumerate(asked):
        thread.start()
        wait_until(lambda number=number: waiting_and_running(served) == number + 1)
    served.generator.gate.set()
    for thread in asked:
        thread.join(5.0)
    assert [reply.status_code for reply in replies] == [503, 503]
    before = time.monotonic()
    later = served.chat("later", stream=stream)
    assert later.status_code == 503
    assert later.json()["error"]["code"] == "engine_stopped"
    assert time.monotonic() - before < 1.0
    health = served.client.get("/health")
    assert health.status_code == 503
    assert health.json()["status"] == "dead"
    assert "SystemExit" in health.json()["reason"]
    assert "mtrun_up 0.0" in served.client.get("/metrics").text


def test_health_is_503_while_the_model_loads(start: Callable[..., Any]) -> None:
    load_gate = threading.Event()
    served = start(load_gate=load_gate)
    health = served.client.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "loading")
    refused = served.chat()
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    load_gate.set()
    wait_until(lambda: served.client.get("/health").status_code == 200)
    assert served.chat().status_code == 200


def test_a_failed_load_is_dead_with_its_reason(start: Callable[..., Any]) -> None:
    served = start(load_error=LaneError("The lane frspec failed its proof: switch it off."))
    wait_until(lambda: served.health()["status"] == "dead")
    assert "frspec" in served.health()["reason"]
    assert served.chat().status_code == 503


def test_the_log_has_one_verdict_line_a_request_and_never_content(
    start: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    served = start(faults={"broken": RuntimeError("codeword-7")})
    with caplog.at_level(logging.DEBUG, logger="mtrun"):
        served.chat("codeword-7 plain")
        served.chat("codeword-7 broken")
        served.chat("codeword-7", temperature="codeword-7")
    lines = [record.getMessage() for record in caplog.records if "[cascade-accept]" in record.getMessage()]
    assert len(lines) == 1
    assert "rule=tokenv3 alpha=0.95" in lines[0]
    assert "codeword" not in caplog.text.lower()
    assert served.health()["last_line"] == lines[0]
    assert "codeword" not in json.dumps(served.health()).lower()


def waiting_and_running(served: Any) -> int:
    queue = served.health()["queue"]
    return queue["queued"] + queue["in_flight"]


def wait_until(read: Callable[[], bool]) -> None:
    end = time.monotonic() + 3.0
    while not read():
        assert time.monotonic() < end, "not so in time"
        time.sleep(0.01)
