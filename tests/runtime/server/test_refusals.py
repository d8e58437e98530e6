"""Every refusal: its status, the OpenAI error shape, the field it names."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

JSON = {"content-type": "application/json"}
USER = [{"role": "user", "content": "hi"}]
NUMBERS = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "draft_depth",
    "top_logprobs",
]
OUT_OF_RANGE = [
    ("temperature", -1),
    ("temperature", 2.1),
    ("temperature", 1e-40),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_k", -1),
    ("top_k", 1.5),
    ("min_p", 1),
    ("min_p", -0.1),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("repetition_penalty", 11),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_completion_tokens", 0),
    ("n", 2),
    ("n", 10000),
    ("n", 0),
    ("seed", -1),
    ("seed", 2**63),
    ("stop", ""),
    ("stop", [""]),
    ("stop", ["a"] * 17),
    ("stop", [1]),
    ("stop", {"a": 1}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"256": 1}),
    ("logit_bias", {"65": 101}),
    ("logit_bias", {"65": True}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", []),
    ("draft_depth", 3),
    ("draft_depth", -1),
    ("ignore_eos", 1),
    ("stream", "yes"),
    ("stream_options", {"include_usage": True}),
    ("logprobs", 1),
    ("top_logprobs", 2),
    ("model", 5),
    ("messages", []),
    ("messages", None),
    ("messages", "hello"),
]
UNSUPPORTED = [
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tool_choice", "required"),
    ("functions", [{"name": "f"}]),
    ("function_call", {"name": "f"}),
    ("response_format", {"type": "json_object"}),
    ("audio", {"voice": "x"}),
    ("modalities", ["text", "audio"]),
    ("prediction", {}),
    ("reasoning_effort", "low"),
    ("store", True),
    ("web_search_options", {}),
    ("max_token", 3),
    ("", 1),
]
MESSAGES = [
    ({"role": "user"}, "messages[0].content"),
    ({"role": "user", "content": None}, "messages[0].content"),
    ({"role": "user", "content": 5}, "messages[0].content"),
    ({"role": "user", "content": []}, "messages[0].content"),
    ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content"),
    ({"role": "user", "content": "\udfff"}, "messages[0].content"),
    ({"role": "robot", "content": "x"}, "messages[0].role"),
    ({"content": "x"}, "messages[0].role"),
    ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls"),
    ("x", "messages[0]"),
    ({"role": "assistant", "content": "only me"}, "messages"),  # the template's own refusal
]


def refused(reply: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert reply.headers["x-request-id"]
    return body["error"]


@pytest.mark.parametrize(("field", "value"), [*OUT_OF_RANGE, *UNSUPPORTED])
def test_a_value_that_cannot_be_honoured_names_its_field(served: Any, field: str, value: Any) -> None:
    error = refused(served.chat(**{field: value}))
    assert error["param"] == field
    assert served.generator.seen == []


@pytest.mark.parametrize("field", NUMBERS)
def test_a_number_is_never_a_boolean_a_string_or_not_finite(served: Any, field: str) -> None:
    for text in ("true", '"1"', "NaN", "Infinity", "-Infinity", "1e999", "[]", "{}"):
        content = f'{{"messages": [{{"role": "user", "content": "x"}}], "{field}": {text}}}'
        error = refused(served.client.post("/v1/chat/completions", content=content, headers=JSON))
        assert error["param"] == field


@pytest.mark.parametrize(("message", "param"), MESSAGES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_message_that_cannot_be_read_is_named(served: Any, message: Any, param: str, stream: bool) -> None:
    reply = served.chat(messages=[message], stream=stream)
    assert refused(reply)["param"] == param
    assert reply.headers["content-type"] == "application/json"


def test_two_different_limits_contradict(served: Any) -> None:
    assert refused(served.chat(max_tokens=3, max_completion_tokens=4))["param"] == "max_tokens"
    assert served.chat(max_tokens=3, max_completion_tokens=3).json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("name", ["../../etc", "/etc/passwd", "other/model", "https://example.com/m", ""])
def test_only_the_served_model_exists(served: Any, name: str) -> None:
    error = refused(served.chat(model=name), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert served.chat(model="tiny/fake").status_code == 200


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b"null", b'"x"', b"\xff\xfe{}", b'{"a": 1}x', b"[" * 200_000, b'{"n":' + b"1" * 9000 + b"}"],
)
def test_what_is_no_json_object_is_said_to_be_none(served: Any, content: bytes) -> None:
    error = refused(served.client.post("/v1/chat/completions", content=content, headers=JSON))
    assert (error["param"], error["code"]) == ("body", "invalid_json")


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_another_content_type_is_refused(served: Any, media: str) -> None:
    reply = served.client.post("/v1/chat/completions", content=b"{}", headers={"content-type": media})
    assert refused(reply, 415)["param"] == "content-type"


def test_a_field_sent_twice_is_refused_by_name(served: Any) -> None:
    content = b'{"messages": [{"role": "user", "content": "x"}], "temperature": 0, "temperature": 1}'
    assert refused(served.client.post("/v1/chat/completions", content=content, headers=JSON))["param"] == "temperature"


@pytest.mark.parametrize("place", ["body", "message", "messages"])
def test_a_flood_of_faults_costs_no_more_than_one(served: Any, place: str) -> None:
    flood: dict[str, Any] = {f"x{i}": 1 for i in range(400_000)}
    message: Any = {"role": "user", "content": "x", **(flood if place == "message" else {})}
    messages = [{}] * 400_000 if place == "messages" else [message]
    reply = served.post("/v1/chat/completions", {"messages": messages, **(flood if place == "body" else {})})
    expected = {"body": "x0", "message": "messages[0].x0", "messages": "messages[0].role"}
    assert refused(reply)["param"] == expected[place]
    assert reply.elapsed.total_seconds() < 5.0


def test_unknown_paths_and_methods_have_the_same_shape(served: Any) -> None:
    assert refused(served.client.get("/v1/nothing"), 404)["code"] == "not_found"
    assert refused(served.client.get("/openapi.json"), 404)["code"] == "not_found"
    reply = served.client.get("/v1/chat/completions")
    assert refused(reply, 405)["code"] == "method_not_allowed"
    assert reply.headers["allow"] == "POST"


def test_a_body_past_the_limit_is_refused_declared_or_not(served: Any) -> None:
    big = b'{"messages": "' + b"a" * (8 * 1024 * 1024) + b'"}'
    assert refused(served.client.post("/v1/chat/completions", content=big, headers=JSON), 413)["param"] == "body"
    pieces = (big[i : i + 65536] for i in range(0, len(big), 65536))  # chunked: no length declared
    assert refused(served.client.post("/v1/chat/completions", content=pieces, headers=JSON), 413)["param"] == "body"
    assert served.chat().status_code == 200


def test_a_refusal_of_the_engine_keeps_its_field_also_in_a_stream(start: Any) -> None:
    from mtrun.runtime.errors import CapacityError, RequestError

    served = start(faults={"field": RequestError("Send less.", "top_k"), "memory": CapacityError("It needs 9 GB.")})
    for stream in (False, True):
        assert refused(served.chat("field", stream=stream))["param"] == "top_k"
    assert served.health()["requests"]["refused"] == 2


def test_what_would_never_fit_is_the_clients_to_change(start: Any) -> None:
    from mtrun.runtime.errors import CapacityError

    served = start(per_cycle=1, faults={"memory": CapacityError("It needs 9 GB of 8 GB.")})
    error = refused(served.chat("memory"))
    assert (error["param"], error["code"]) == ("messages", "memory_limit_exceeded")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [*NUMBERS, "messages", "model", "stream", "stop", "logit_bias", "logprobs", "stream_options", "tools", "x"]
)


@given(fields=st.dictionaries(FIELDS | st.text(max_size=4), VALUES, max_size=4), whole=st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_body_is_served_or_refused_by_name(served: Any, fields: dict[str, Any], whole: bool) -> None:
    body = {"messages": USER, **fields} if whole else fields
    reply = served.post("/v1/chat/completions", body)
    assert 200 <= reply.status_code < 300 or 400 <= reply.status_code < 500, reply.text
    if reply.status_code >= 400:
        assert reply.json()["error"]["param"] is not None
