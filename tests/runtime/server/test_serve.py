"""Binding, signals and the way down: what runs may finish, what cannot is told so."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.server.serve import bind

TESTS = Path(__file__).parents[2]
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from support.fake_engine import FakeEngine, ScriptedGenerator
from mtrun.runtime.server.serve import serve
engine = FakeEngine(ScriptedGenerator(delay=float(sys.argv[2])))
engine.worker.wait_ready()
serve(engine, on_bound=lambda host, port: print(port, flush=True), grace_seconds=float(sys.argv[3]))
"""


def test_a_taken_port_is_one_clear_sentence(make_settings: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"Port {port} on 127\.0\.0\.1 is taken: .*server\.port=N"):
            bind(make_settings(port=port))


def test_a_foreign_address_and_a_wild_port_are_clear_sentences(make_settings: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"Cannot listen on server\.host=192\.0\.2\.1"):
        bind(make_settings(host="192.0.2.1", no_auth=True))
    with pytest.raises(ConfigurationError, match=r"server\.port=70000"):
        bind(make_settings(port=70000))


def test_a_shutdown_lets_running_and_waiting_requests_finish(start: Callable[..., Any]) -> None:
    served = start(delay=0.02)
    texts: list[str] = []

    def ask() -> None:
        reply = httpx.post(f"{served.url}/v1/completions", json={"prompt": "x" * 30, "stream": True}, timeout=10.0).text
        texts.append(reply)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.15)
    served.server.should_exit = True
    for thread in threads:
        thread.join(5.0)
    assert len(texts) == 3
    assert all(text.rstrip().endswith("[DONE]") for text in texts)


def test_what_outlasts_the_grace_is_told_so(start: Callable[..., Any]) -> None:
    served = start(delay=0.05)  # 400 bytes take seven seconds; the grace is two
    body = {"prompt": "x" * 400, "stream": True}
    texts: list[str] = []
    ask = threading.Thread(
        target=lambda: texts.append(httpx.post(f"{served.url}/v1/completions", json=body, timeout=10.0).text)
    )
    ask.start()
    time.sleep(0.2)
    served.server.should_exit = True
    ask.join(6.0)
    last = [line for line in texts[0].splitlines() if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_stream_and_ends_the_process(number: signal.Signals) -> None:
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(TESTS), "0.02", "5"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    body = {"prompt": "x" * 60, "stream": True}
    with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=10.0) as reply:
        lines = reply.iter_lines()
        next(lines)
        process.send_signal(number)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    _, errors = process.communicate(timeout=10.0)
    assert process.returncode in (0, -number)
    assert "Traceback" not in errors
