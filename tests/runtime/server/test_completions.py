"""POST /v1/completions: prompts, the legacy shapes, streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest


@pytest.fixture
def client(served: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=10.0) as client:
        yield client


@pytest.mark.parametrize("prompt", ["abc", ["abc"], [97, 98, 99], [[97, 98, 99]]])
def test_one_prompt_in_each_of_its_forms(client: openai.OpenAI, prompt: Any) -> None:
    reply = client.completions.create(model="tiny/fake", prompt=prompt)
    assert reply.choices[0].text == "ABC"
    assert reply.usage.prompt_tokens == 3
    assert reply.model_extra["mtrun"]["acceptance"]["engaged"] is True


def test_a_streamed_reply_has_the_text_of_a_whole_one(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    chunks = list(client.completions.create(model="tiny/fake", prompt="abcdef", stream=True, stream_options=options))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "ABCDEF"
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_logprobs_have_the_legacy_shape_with_running_offsets(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="tiny/fake", prompt="abcdef", logprobs=2)
    logprobs = reply.choices[0].logprobs
    assert logprobs.tokens == list("ABCDEF")
    assert logprobs.token_logprobs == [-0.5] * 6
    assert logprobs.top_logprobs[0] == {"A": -66.0, "B": -67.0}
    stream = client.completions.create(model="tiny/fake", prompt="abcdef", logprobs=2, stream=True)
    offsets = [chunk.choices[0].logprobs.text_offset for chunk in stream if chunk.choices[0].logprobs]
    assert [offset for part in offsets for offset in part] == logprobs.text_offset == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [256]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "a\ud800"}, "prompt"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_completion_tokens": 2}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(served: Any, fields: dict[str, Any], param: str) -> None:
    reply = served.post("/v1/completions", {"prompt": "abc", **fields})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert served.generator.seen == []
