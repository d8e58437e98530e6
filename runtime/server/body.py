"""Reading a request's body: JSON objects of a bounded size, and nothing else."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from mtrun.runtime.server.errors import Problem, ProblemError

BODY_LIMIT = 8 * 1024 * 1024  # bytes


async def read_object(request: Request, limit: int = BODY_LIMIT) -> dict[str, Any]:
    """The body's JSON object without its top-level nulls: null means absent.

    Raises:
        ProblemError: 415 another content type, 413 over `limit` bytes, 400 not JSON or not an object.
    """
    _check_content_type(request.headers.get("content-type", ""))
    return _parse(await _read(request, limit))


def _check_content_type(value: str) -> None:
    media = value.partition(";")[0].strip().lower()
    if media == "application/json" or (media.startswith("application/") and media.endswith("+json")):
        return
    raise ProblemError(
        Problem(415, "Send the body as JSON with the header Content-Type: application/json.", param="content-type")
    )


async def _read(request: Request, limit: int) -> bytes:
    too_large = ProblemError(
        Problem(413, f"The body is larger than {limit} bytes: send less.", param="body", code="request_too_large")
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    content = bytearray()
    try:
        async for piece in request.stream():
            content += piece
            if len(content) > limit:
                raise too_large
    except ClientDisconnect:
        raise ProblemError(Problem(400, "The client left before the body was complete.", param="body")) from None
    return bytes(content)


def _parse(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise _malformed("it is nested too deeply") from None
    except ValueError as error:  # also UnicodeDecodeError and numbers of too many digits
        raise _malformed(_place(error)) from None
    if not isinstance(value, dict):
        raise _malformed(f"it is {_kind(value)}")
    return {name: item for name, item in value.items() if item is not None}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values for one name either could be meant, so neither is taken."""
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ProblemError(Problem(400, f"Send {name[:80]!r} once: the body has it twice.", param=name))
    return value


def _malformed(reason: str) -> ProblemError:
    return ProblemError(Problem(400, f"The body is not a JSON object: {reason}.", param="body", code="invalid_json"))


def _place(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return "a number has too many digits"


def _kind(value: object) -> str:
    return {list: "a list", str: "a string", bool: "a boolean"}.get(type(value), "a number or null")
