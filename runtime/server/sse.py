"""Server-sent events: frames, and the response that sends them.

A good stream ends with `data: [DONE]`. A stream that fails after its first byte sends one `event: error` with the usual
error object and ends there, without [DONE]: a client that sees no [DONE] knows that the reply is not whole.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mtrun.runtime.server.errors import Problem

DONE = b"data: [DONE]\n\n"


def data(value: Mapping[str, Any]) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n\n"


def comment(text: str) -> bytes:
    """A line that clients skip: it only keeps the connection from looking dead."""
    return f": {text}\n\n".encode()


def error(problem: Problem) -> bytes:
    """The last event of a stream that fails."""
    return b"event: error\ndata: " + json.dumps(problem.body()).encode() + b"\n\n"


class EventStream(Response):
    """Sends `frames`, then calls `finish`, whether the stream ended, failed or was cut off."""

    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncGenerator[bytes, None], finish: Callable[[], None], headers: Mapping[str, str]
    ) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._frames = frames
        self._finish = finish

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for frame in self._frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            return  # the client has left; some servers say so by failing the send
        finally:
            self._finish()
            await self._frames.aclose()
