"""POST /v1/chat/completions through the official client: what a reply holds, whole and streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

USER = [{"role": "user", "content": "good morning, world"}]


@pytest.fixture
def client(served: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=10.0) as client:
        yield client


def test_a_streamed_reply_has_the_text_of_a_whole_one(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny/fake", messages=USER)
    chunks = list(client.chat.completions.create(model="tiny/fake", messages=USER, stream=True))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert whole.choices[0].message.content == streamed == "GOOD MORNING, WORLD"
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize(
    ("options", "expected"), [({"include_usage": True}, 1), ({"include_usage": False}, 0), (None, 0)]
)
def test_the_usage_chunk_comes_once_and_only_when_asked(
    client: openai.OpenAI, options: dict[str, bool] | None, expected: int
) -> None:
    stream = client.chat.completions.create(model="tiny/fake", messages=USER, stream=True, stream_options=options)
    chunks = list(stream)
    with_usage = [chunk for chunk in chunks if chunk.usage is not None]
    assert len(with_usage) == expected
    if expected:
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == 19
        assert chunks[-1].usage.total_tokens == 38


def test_every_reply_says_which_law_made_it(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="tiny/fake", messages=USER, seed=41)
    told = raw.parse().model_extra["mtrun"]
    assert told["acceptance"]["law"] == "cascade"
    assert told["acceptance"]["rule"] == "tokenv3"
    assert told["acceptance"]["parameters"] == {"alpha": 0.95}
    assert told["acceptance"]["distribution_exact"] is False
    assert told["counts"]["accepted"] + told["counts"]["resamples"] == told["counts"]["positions"]
    assert told["rates"]["tokens_per_cycle"] == pytest.approx(19 / 7)
    assert told["seed"] == 41
    expected = "law=cascade rule=tokenv3 alpha=0.95 distribution_exact=false"
    assert raw.headers["x-mtrun-acceptance"] == expected
    assert raw.headers["x-request-id"].startswith("req-")


def test_a_stream_says_it_in_its_closing_chunk_and_its_header(client: openai.OpenAI) -> None:
    with client.chat.completions.with_streaming_response.create(
        model="tiny/fake", messages=USER, stream=True
    ) as response:
        assert response.headers["x-mtrun-acceptance"].startswith("law=cascade")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert '"mtrun"' in lines[-2]
    assert '"finish_reason": "stop"' in lines[-2]


def test_logprobs_have_the_chat_shape(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny/fake", messages=USER, logprobs=True, top_logprobs=2, max_tokens=4
    )
    content = reply.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["G", "O", "O", "D"]
    assert content[0].bytes == [71]
    assert content[0].logprob == -0.5
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [("A", -66.0), ("B", -67.0)]
    assert reply.choices[0].finish_reason == "length"


def test_streamed_logprobs_join_to_the_whole_ones(client: openai.OpenAI) -> None:
    chunks = client.chat.completions.create(model="tiny/fake", messages=USER, logprobs=True, stream=True)
    entries = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert "".join(entry.token for entry in entries) == "GOOD MORNING, WORLD"
    assert all(entry.top_logprobs == [] for entry in entries)


def test_stop_takes_a_string_or_a_list(client: openai.OpenAI) -> None:
    for stop in ("MORN", ["WORLD", "MORN"]):
        reply = client.chat.completions.create(model="tiny/fake", messages=USER, stop=stop)
        assert reply.choices[0].message.content == "GOOD "
        assert reply.choices[0].finish_reason == "stop"


def test_the_request_reaches_the_engine_as_sent(served: Any) -> None:
    reply = served.chat(
        temperature=0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"65": -100},
        seed=0,
        stop=["#"],
        max_completion_tokens=9,
        ignore_eos=True,
        draft_depth=0,
    )
    assert reply.status_code == 200
    request = served.generator.seen[-1]
    assert request.sampling.temperature == 0
    assert request.sampling.logit_bias == {65: -100.0}
    assert request.sampling.seed == 0
    assert (request.stop, request.max_tokens, request.ignore_eos, request.depth) == (("#",), 9, True, 0)


def test_null_means_absent_in_every_optional_field(served: Any) -> None:
    from mtrun.runtime.server.schemas import INERT, ChatBody

    nulls = dict.fromkeys([*(set(ChatBody.model_fields) - {"messages"}), *INERT, "audio", "unheard_of"])
    assert served.chat(**nulls).status_code == 200
    assert served.generator.seen[-1].sampling.temperature == 0.7
    message = {"role": "user", "content": "a", "name": None, "tool_calls": None}
    assert served.chat(messages=[message]).status_code == 200
    assert served.chat(stream=True, stream_options={"include_usage": None}).status_code == 200


def test_fields_that_ask_for_nothing_are_accepted(served: Any) -> None:
    harmless = {"user": "u", "metadata": {"a": "b"}, "store": False, "tools": [], "response_format": {"type": "text"}}
    assert served.chat(**harmless, service_tier="auto", modalities=["text"], n=1).status_code == 200


def test_developer_is_system_and_parts_are_joined(served: Any) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "system", "content": "mid"},
    ]
    reply = served.chat(messages=messages)
    assert reply.json()["choices"][0]["message"]["content"] == "BE BRIEF\nAB\nMID"


def test_the_reply_is_cut_at_the_context_limit(start: Callable[..., Any]) -> None:
    served = start(engine={"context_limit": 64})
    reply = served.chat("a" * 60, max_tokens=100).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"] == {"prompt_tokens": 60, "completion_tokens": 4, "total_tokens": 64}
    refused = served.chat("a" * 64).json()["error"]
    assert (refused["param"], refused["code"]) == ("messages", "context_length_exceeded")
    assert "64 tokens" in refused["message"]


def test_parallel_requests_never_see_each_other(start: Callable[..., Any]) -> None:
    served = start(delay=0.001)

    def ask(number: int) -> tuple[str, str]:
        marker = f"marker-{number:03d} " * 5
        if number % 2:
            return marker, served.chat(marker).json()["choices"][0]["message"]["content"]
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=20.0) as client:
            stream = client.chat.completions.create(
                model="tiny/fake", messages=[{"role": "user", "content": marker}], stream=True
            )
            return marker, "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    with ThreadPoolExecutor(16) as pool:
        for marker, text in pool.map(ask, range(16)):
            assert text == marker.upper()
    report = served.until_idle()
    assert report["requests"] == {"completed": 16, "failed": 0, "refused": 0, "cancelled": 0}
