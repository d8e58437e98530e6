"""One request through the worker: admit it, follow its events, answer in one piece or as a stream.

The two endpoints differ only in the `Shape` of what they send. A client that leaves cancels its ticket, so the request
leaves the queue at once or stops before the next cycle, whether or not it streams.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mtrun.runtime.errors import EngineStoppedError, RequestError
from mtrun.runtime.requests import Chunk, Event, Finished, GenerationRequest, Prefill, TokenLogprob
from mtrun.runtime.server import sse
from mtrun.runtime.server.api import EngineApi
from mtrun.runtime.server.errors import Problem, ProblemError, problem_of
from mtrun.runtime.server.reply import acceptance_header, mtrun_object, usage
from mtrun.runtime.server.schemas import CommonBody
from mtrun.runtime.ticket import Ticket

logger = logging.getLogger("mtrun")

_END: Any = object()


class Shape(Protocol):
    """How an endpoint writes its replies. One object a request: it may remember how far the text has come."""

    prompt_field: str  # "messages" or "prompt"

    def whole(self, text: str, logprobs: Sequence[TokenLogprob], finished: Finished) -> dict[str, Any]: ...

    def opening(self) -> dict[str, Any] | None:
        """The chunk before the first text, where the endpoint has one."""
        ...

    def delta(self, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]: ...

    def closing(self, finished: Finished) -> dict[str, Any]:
        """The chunk that carries finish_reason."""
        ...

    def usage_only(self) -> dict[str, Any]:
        """The envelope of the usage chunk, with no choices."""
        ...


@dataclass(frozen=True)
class Exchange:
    """A request that the worker has taken."""

    engine: EngineApi
    ticket: Ticket
    shape: Shape
    departure: asyncio.Task[None]  # cancels the ticket when the client leaves

    def finish(self) -> None:
        self.departure.cancel()
        self.ticket.cancel()


def check_model(engine: EngineApi, model: str | None) -> None:
    """Only the served id exists; the name is compared and never looked up anywhere."""
    if model is not None and model != engine.model_id:
        message = f"The model {model[:80]!r} is not served here: send {engine.model_id!r} or leave model out."
        raise ProblemError(Problem(404, message, param="model", code="model_not_found"))


def generation_request(
    engine: EngineApi,
    request_id: str,
    body: CommonBody,
    prompt_ids: Sequence[int],
    max_tokens: int | None,
    top_logprobs: int | None,
    prompt_field: str,
) -> GenerationRequest:
    """The request in the engine's terms.

    Raises:
        RequestError: names the field that needs the engine's own limits: context, vocabulary, draft depth.
    """
    if body.draft_depth is not None and body.draft_depth > engine.draft_depth:
        raise RequestError(f"Send draft_depth from 0 to {engine.draft_depth}, the configured depth.", "draft_depth")
    stranger = next((token for token in body.logit_bias or () if token >= engine.vocab_size), None)
    if stranger is not None:
        message = f"Send logit_bias with ids below {engine.vocab_size}, the vocabulary's size, not {stranger}."
        raise RequestError(message, "logit_bias")
    return GenerationRequest(
        id=request_id,
        prompt_ids=tuple(prompt_ids),
        sampling=engine.sampling(body.overrides()),
        max_tokens=_room(engine, len(prompt_ids), max_tokens, prompt_field),
        stop=body.stop,
        top_logprobs=top_logprobs,
        ignore_eos=body.ignore_eos,
        depth=body.draft_depth,
    )


def _room(engine: EngineApi, prompt_tokens: int, max_tokens: int | None, prompt_field: str) -> int:
    """Tokens the reply may have: what was asked for, cut at the context limit."""
    if prompt_tokens == 0:
        raise RequestError(f"Send {prompt_field} with at least one token.", prompt_field)
    room = engine.context_limit - prompt_tokens
    if room < 1:
        message = (
            f"Send shorter {prompt_field}: {prompt_tokens} tokens leave no room in the context limit of "
            f"{engine.context_limit} tokens."
        )
        raise ProblemError(Problem(400, message, param=prompt_field, code="context_length_exceeded"))
    asked = max_tokens if max_tokens is not None else engine.max_tokens_default
    return room if asked is None else min(asked, room)


async def answer(request: Request, generation: GenerationRequest, shape: Shape, body: CommonBody) -> Response:
    """Submit and reply. Errors before the first byte are plain JSON with their status, also when streaming."""
    engine: EngineApi = request.app.state.engine
    headers = acceptance_header(engine)
    ticket = engine.worker.submit(generation)
    exchange = Exchange(engine, ticket, shape, asyncio.create_task(_watch(request, ticket)))
    try:
        if body.stream:
            include_usage = body.stream_options is not None and body.stream_options.include_usage
            first = await _next(ticket, engine.server.keep_alive_seconds)
            return sse.EventStream(_frames(exchange, first, include_usage), exchange.finish, headers)
        return await _whole(exchange, headers)
    except BaseException as error:
        exchange.finish()
        if isinstance(error, Exception):
            raise ProblemError(_problem(error, exchange)) from error
        raise


async def _watch(request: Request, ticket: Ticket) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
    ticket.cancel()


async def _next(ticket: Ticket, seconds: float) -> Event | None:
    """The next event, None when there was none within `seconds`, `_END` after the last."""
    try:
        async with asyncio.timeout(seconds):
            return await anext(ticket, _END)
    except TimeoutError:
        return None


async def _whole(exchange: Exchange, headers: Mapping[str, str]) -> Response:
    text, logprobs = [], []
    async for event in exchange.ticket:
        if isinstance(event, Chunk):
            text.append(event.text)
            logprobs.extend(event.logprobs)
        elif isinstance(event, Finished) and event.reason != "cancelled":
            exchange.finish()
            value = exchange.shape.whole("".join(text), logprobs, event)
            value |= {"usage": usage(event), "mtrun": mtrun_object(event, exchange.ticket)}
            return JSONResponse(value, headers=dict(headers))
    raise _cut_short()


def _cut_short() -> EngineStoppedError:
    """A cancelled ticket whose client may still be there: the server cancelled it."""
    return EngineStoppedError("The server stopped before this reply was whole: send the request again.")


def _problem(error: Exception, exchange: Exchange) -> Problem:
    problem = problem_of(error, exchange.shape.prompt_field)
    if problem.code == "internal_error":
        logger.error("request %s failed with %s", exchange.ticket.request.id, type(error).__name__)
    return problem


async def _frames(exchange: Exchange, first: Event | None, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """The frames of a stream; a comment whenever nothing else was sent for `keep_alive_seconds`."""
    keep_alive = exchange.engine.server.keep_alive_seconds
    event, sent = first, time.monotonic()
    opening = exchange.shape.opening()
    if opening is not None:
        yield sse.data(opening)
    try:
        while event is not _END:
            frames = _frames_of(exchange, event, include_usage)
            for frame in frames:
                yield frame
            if isinstance(event, Finished):
                return
            sent = time.monotonic() if frames else sent
            event = await _next(exchange.ticket, max(0.0, sent + keep_alive - time.monotonic()))
        raise _cut_short()
    except Exception as error:
        yield sse.error(_problem(error, exchange))


def _frames_of(exchange: Exchange, event: Event | None, include_usage: bool) -> list[bytes]:
    shape = exchange.shape
    if event is None:
        return [sse.comment("keep-alive")]
    if isinstance(event, Prefill):
        return [sse.comment(f"prefill {event.done}/{event.total}")]
    if isinstance(event, Chunk):
        return [sse.data(shape.delta(event.text, event.logprobs))] if event.text or event.logprobs else []
    if event.reason == "cancelled":
        raise _cut_short()
    closing = shape.closing(event) | {"mtrun": mtrun_object(event, exchange.ticket)}
    tail = [sse.data({**shape.usage_only(), "usage": usage(event)})] if include_usage else []
    return [sse.data(closing), *tail, sse.DONE]
