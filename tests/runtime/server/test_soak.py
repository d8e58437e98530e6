"""Many random requests at once: valid, invalid, cancelled; streamed and whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil

INVALID = [
    ({"temperature": 9}, "temperature"),
    ({"stop": ""}, "stop"),
    ({"n": 3}, "n"),
    ({"nonsense": 1}, "nonsense"),
    ({"messages": []}, "messages"),
    ({"max_tokens": 0}, "max_tokens"),
]
REQUESTS = 500


def test_five_hundred_random_requests_leave_no_trace(start: Callable[..., Any]) -> None:
    served = start(delay=0.0005, server={"queue_limit": 64})
    random_ = random.Random(5)
    with httpx.Client(base_url=served.url, timeout=20.0) as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: one(client, number, random.Random(number)), range(60)))
        process = psutil.Process()
        before = process.memory_info().rss
        seeds = [random_.randrange(10**6) for _ in range(REQUESTS)]
        outcomes = list(pool.map(lambda seed: one(client, seed, random.Random(seed)), seeds))
    served.generator.seen.clear()
    report = served.until_idle()
    assert {"whole", "stream", "refused", "left"} == set(outcomes)
    assert report["requests"]["failed"] == 0
    assert report["status"] == "ok"
    assert process.memory_info().rss - before < 24 * 1024 * 1024


def one(client: httpx.Client, number: int, random_: random.Random) -> str:
    """One random request; checks its own reply and says which kind it was."""
    marker = f"marker-{number} " * random_.randint(1, 8)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": marker}]}
    kind = random_.choice(["whole", "stream", "refused", "left"])
    path = "/v1/chat/completions"
    if kind == "refused":
        fields, param = random_.choice(INVALID)
        reply = client.post(path, json={**body, **fields, "stream": random_.random() < 0.5})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    elif kind == "whole":
        reply = client.post(path, json=body)
        assert reply.json()["choices"][0]["message"]["content"] == marker.upper()
    else:
        with client.stream("POST", path, json={**body, "stream": True}) as reply:
            assert reply.status_code == 200
            lines = reply.iter_lines()
            if kind == "left":
                next(lines)
            else:
                assert [line for line in lines if line][-1] == "data: [DONE]"
    return kind
