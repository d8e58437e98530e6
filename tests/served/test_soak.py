"""Five hundred random requests through a real server, eight at a time: valid, refused, abandoned, streamed, whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from support.served_process import Process

REQUESTS = 500
WARM_UP = 60
CLIENTS = 8
GROWTH = 48 * 2**20  # bytes that allocators may keep; a leaked KV cache a request would be several times this
REFUSALS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"min_p": 1}, "min_p"),
    ({"stop": [""]}, "stop"),
    ({"n": 2}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": []}, "messages"),
    ({"seed": "x"}, "seed"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
)


@pytest.fixture(scope="module")
def process(serve: Callable[..., Process]) -> Process:
    return serve("profile=cascade-tokenv3", "server.queue_limit=64")


def test_random_traffic_leaves_no_trace(process: Process) -> None:
    solo = {seed: reply_text(process, seed) for seed in range(16)}
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda seed: one(process, random.Random(seed), solo), range(WARM_UP)))
        server = psutil.Process(process.popen.pid)
        before = server.memory_info().rss
        kinds = list(pool.map(lambda seed: one(process, random.Random(seed), solo), range(1000, 1000 + REQUESTS)))
    assert set(kinds) == {"whole", "stream", "refused", "left"}
    report = process.get("/health")
    assert report["status"] == "ok"
    assert (report["queue"]["in_flight"], report["queue"]["queued"]) == (0, 0)
    assert report["requests"]["failed"] == 0
    assert server.memory_info().rss - before < GROWTH
    assert reply_text(process, 3) == solo[3]


def body(seed: int) -> dict[str, Any]:
    """A valid request whose reply is known: its seed decides everything about it."""
    random_ = random.Random(seed)
    fields: dict[str, Any] = {"seed": seed, "max_tokens": random_.randint(1, 24)}
    for name, value in (("temperature", 0.8), ("top_p", 0.9), ("top_k", 5), ("frequency_penalty", 0.5), ("stop", "e")):
        if random_.random() < 0.3:
            fields[name] = value
    return {"messages": [{"role": "user", "content": f"marker {seed}"}], **fields}


def reply_text(process: Process, seed: int) -> str:
    return process.post("/v1/chat/completions", body(seed)).json()["choices"][0]["message"]["content"]


def one(process: Process, random_: random.Random, solo: dict[int, str]) -> str:
    """One random request, checked against what it gives alone; says of which kind it was."""
    kind = random_.choice(["whole", "whole", "stream", "refused", "left"])
    seed = random_.randrange(len(solo))
    url = f"{process.url}/v1/chat/completions"
    if kind == "refused":
        fields, field = random_.choice(REFUSALS)
        refusal = httpx.post(url, json={**body(seed), **fields, "stream": random_.random() < 0.5}, timeout=60.0)
        assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, field)
    elif kind == "whole":
        assert reply_text(process, seed) == solo[seed]
    else:
        # An abandoned request is a long one, so that it is really cut off in the middle.
        asked = {**body(seed), "stream": True, **({"max_tokens": 300, "ignore_eos": True} if kind == "left" else {})}
        with httpx.stream("POST", url, json=asked, timeout=60.0) as reply:
            assert reply.status_code == 200
            for line in reply.iter_lines():
                if kind == "left" and line.startswith("data:"):
                    return kind
    return kind
