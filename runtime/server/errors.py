"""Errors on the wire: one shape, {"error": {message, type, param, code}}, for every status."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mtrun.runtime.errors import CapacityError, EngineStoppedError, MtrunError, RequestError, StampError


@dataclass(frozen=True)
class Problem:
    """One refusal. `param` names the field or header at fault in the client's own words."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        # ASCII escapes: a message may quote a lone surrogate that UTF-8 cannot carry.
        content = json.dumps(self.body()).encode("ascii")
        return Response(content, self.status, dict(self.headers), media_type="application/json")


class ProblemError(Exception):
    """Raised where a refusal is found; the application turns it into its response."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def problem_of(error: BaseException, field_default: str | None = None) -> Problem:
    """The wire form of any exception. `field_default` names the field when the error does not."""
    if isinstance(error, ProblemError):
        return error.problem
    if isinstance(error, RequestError):
        return Problem(400, str(error), param=error.field or field_default)
    if isinstance(error, CapacityError):
        return _capacity(error, field_default)
    if isinstance(error, EngineStoppedError | StampError):  # StampError: asked for verdicts while the model loads
        return Problem(503, str(error), kind="server_error", code="engine_stopped", headers={"Retry-After": "5"})
    if isinstance(error, MtrunError):
        return Problem(500, str(error), kind="server_error", code="engine_error")
    return Problem(
        500,
        f"The server failed on this request ({type(error).__name__}): the server's log says where.",
        kind="server_error",
        code="internal_error",
    )


def _capacity(error: CapacityError, field_default: str | None) -> Problem:
    if error.retry_after is None:  # it will never fit: sending it again is no help, so this is the client's to change
        return Problem(400, str(error), param=field_default, code="memory_limit_exceeded")
    headers = {"Retry-After": str(error.retry_after)}
    return Problem(503, str(error), kind="server_error", code="queue_full", headers=headers)


async def on_problem(request: Request, error: Exception) -> Response:
    """One error in the wire format."""
    return problem_of(error).response()


async def on_http_exception(request: Request, error: Exception) -> Response:
    """404 and 405 of the router."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        problem = Problem(404, f"No such path: {request.url.path!r}.", param="path", code="not_found")
    elif error.status_code == 405:
        message = f"{request.method} is not served at {request.url.path!r}: see the Allow header."
        problem = Problem(405, message, param="method", code="method_not_allowed", headers=error.headers or {})
    else:
        text = str(error.detail or HTTPStatus(error.status_code).phrase)
        problem = Problem(error.status_code, text, headers=error.headers or {})
    return problem.response()
