"""Who may talk to the server: origins, hosts, keys, and binds beyond this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.server.security import check_exposure, is_loopback
from mtrun.runtime.server.serve import bind

EVIL = {"origin": "https://evil.example"}
PATHS = ["/health", "/verdicts", "/metrics", "/v1/models", "/v1/chat/completions", "/nothing"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD", "DELETE"])
def test_a_foreign_origin_is_refused_everywhere(served: Any, method: str, path: str) -> None:
    reply = served.client.request(method, path, headers=EVIL)
    assert reply.status_code == 403
    assert not any(name.startswith("access-control") for name in reply.headers)
    if method != "HEAD":
        assert reply.json()["error"]["param"] == "origin"
    assert served.client.request("GET", "/health", headers={"origin": "null"}).status_code == 403


def test_own_pages_and_clients_without_an_origin_are_served(served: Any) -> None:
    reply = served.client.get("/health", headers={"origin": served.url})
    assert reply.status_code == 200
    assert "access-control-allow-origin" not in reply.headers
    assert served.client.get("/health", headers={"origin": "http://127.0.0.1:1"}).status_code == 403


def test_a_listed_origin_is_let_in_without_credentials(start: Callable[..., Any]) -> None:
    served = start(server={"allowed_origins": ["https://good.example/"], "api_key": "k"})
    good = {"origin": "https://good.example"}
    preflight = {**good, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    reply = served.client.options("/v1/chat/completions", headers=preflight)
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == "https://good.example"
    assert "access-control-allow-credentials" not in reply.headers
    reply = served.client.get("/health", headers={**good, "x-api-key": "k"})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, "https://good.example")
    assert served.client.get("/health", headers={**EVIL, "x-api-key": "k"}).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost@evil", "", "["]
)
def test_a_foreign_host_is_refused_on_loopback(served: Any, host: str) -> None:
    reply = served.client.get("/health", headers={"host": host})
    assert (reply.status_code, reply.json()["error"]["param"]) == (403, "host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:8383", "localhost."])
def test_a_loopback_host_is_served_at_any_port(served: Any, host: str) -> None:
    assert served.client.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"authorization": "Bearer k3y"}, {"x-api-key": "k3y"}, {"Authorization": "bearer k3y"}]
)
def test_the_key_opens_by_either_header(start: Callable[..., Any], headers: dict[str, str]) -> None:
    served = start(server={"api_key": "k3y"})
    report = served.client.get("/health", headers=headers)
    assert report.status_code == 200
    assert "k3y" not in report.text


def test_without_the_key_nothing_opens(start: Callable[..., Any]) -> None:
    served = start(server={"api_key": "k3y"})
    wrong = [{}, {"authorization": "Bearer no"}, {"authorization": "Basic k3y"}, {"x-api-key": "k3"}, {"x-api-key": ""}]
    for headers in [*wrong, {"authorization": "Bearer k\u00e9y".encode("latin-1")}]:
        for path in PATHS:
            reply = served.client.get(path, headers=headers)
            assert reply.status_code == 401
            assert reply.json()["error"]["code"] == "invalid_api_key"
            assert reply.headers["www-authenticate"] == "Bearer"
    assert served.generator.seen == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.com"])
def test_a_bind_beyond_this_machine_needs_a_key_or_the_switch(make_settings: Callable[..., Any], host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"server\.api_key=KEY"):
        bind(make_settings(host=host))
    with pytest.raises(ConfigurationError):
        check_exposure(make_settings(host=host, api_key=""))
    check_exposure(make_settings(host=host, api_key="k"))
    check_exposure(make_settings(host=host, no_auth=True))


def test_loopback_is_every_name_of_this_machine_alone() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "localhost.evil", ""]))


def test_a_bomb_of_nesting_is_a_refusal(served: Any) -> None:
    deep = b'{"messages":' + b"[" * 90_000 + b"]" * 90_000 + b"}"
    reply = served.client.post("/v1/chat/completions", content=deep, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    nested: Any = "x"
    for _ in range(300):
        nested = [nested]
    assert served.post("/v1/chat/completions", {"messages": nested}).status_code == 400
    body = {"messages": [{"role": "user", "content": "x"}], "metadata": {"deep": nested}}
    assert served.post("/v1/chat/completions", json.loads(json.dumps(body))).status_code == 200
