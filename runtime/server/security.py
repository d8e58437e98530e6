"""Who may talk to the server: Host and Origin checks, the API key, and the last line that turns a bug into a 500.

A web page in the user's browser can reach a loopback port. It sends its Origin, which must be the server's own or a
listed one; and a page that points its own name at 127.0.0.1 is caught by that name in the Host header.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import traceback
import uuid
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.server.api import ServerSettings
from mtrun.runtime.server.errors import Problem, problem_of

logger = logging.getLogger("mtrun")

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Whether a bind to `host` can be reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(settings: ServerSettings) -> None:
    """Raises ConfigurationError for a bind beyond this machine with neither a key nor the explicit switch."""
    if not is_loopback(settings.host) and not settings.api_key and not settings.no_auth:
        raise ConfigurationError(
            f"server.host={settings.host} can be reached from other machines: set server.api_key=KEY, "
            "or server.no_auth=true to serve without one."
        )


class Guard:
    """Outermost: gives each request its id, refuses foreign hosts and origins, answers what the application dropped."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._loopback = is_loopback(settings.host)
        self._hosts = _LOOPBACK_NAMES | {settings.host.strip("[]").lower()}
        self._origins = frozenset(_normal(origin) for origin in settings.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def tagged(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        request_id = f"req-{uuid.uuid4().hex}"
        problem = self._refusal(Headers(scope=scope))
        if problem is not None:
            await problem.response()(scope, receive, tagged)
            return
        try:
            await self._app(scope, receive, tagged)
        except Exception as error:
            # Type and place only: the message may quote what the client sent.
            place = "".join(traceback.format_tb(error.__traceback__)[-3:])
            logger.error("%s failed with %s\n%s", request_id, type(error).__name__, place)
            if started:
                raise ConnectionAbortedError(f"{request_id} failed after its first byte") from None
            await problem_of(error).response()(scope, receive, tagged)

    def _refusal(self, headers: Headers) -> Problem | None:
        host = headers.get("host", "")
        if self._loopback and _hostname(host) not in self._hosts:
            message = f"The Host header {host[:80]!r} is not this server: send it to localhost or 127.0.0.1."
            return Problem(403, message, param="host", code="foreign_host")
        origin = headers.get("origin")
        if origin is None or self._is_own(origin, host) or not self._origins.isdisjoint({_normal(origin), "*"}):
            return None
        logger.warning("refused the origin %r: list it in server.allowed_origins to let its pages in", origin[:80])
        message = f"The origin {origin[:80]!r} may not use this server: list it in server.allowed_origins."
        return Problem(403, message, param="origin", code="foreign_origin")

    def _is_own(self, origin: str, host: str) -> bool:
        """A page that this server itself served; only a checked Host can say so."""
        return self._loopback and _normal(origin) == f"http://{host.lower()}"


class KeyCheck:
    """Inside CORS, whose preflights carry no key: everything else needs the configured one."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._has_key(Headers(scope=scope)):
            problem = Problem(
                401,
                "Send the server's API key as Authorization: Bearer KEY or as x-api-key: KEY.",
                kind="authentication_error",
                param="authorization",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await problem.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        by_bearer = hmac.compare_digest(bearer.encode("latin-1"), self._key)
        by_header = hmac.compare_digest(headers.get("x-api-key", "").encode("latin-1"), self._key)
        return by_bearer or by_header


def _normal(origin: str) -> str:
    return origin.strip().rstrip("/").lower()


def _hostname(host: str) -> str | None:
    """The name in a Host header, without port and brackets; None where it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        return parts.hostname.rstrip(".") if parts.hostname and not parts.path and parts.username is None else None
    except ValueError:
        return None
