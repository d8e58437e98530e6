"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from mtrun.runtime.requests import Finished, TokenLogprob
from mtrun.runtime.server.api import EngineApi
from mtrun.runtime.server.body import read_object
from mtrun.runtime.server.exchange import answer, check_model, generation_request
from mtrun.runtime.server.reply import chat_logprobs, new_id
from mtrun.runtime.server.schemas import parse_chat

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """A chat reply, whole or streamed. System messages stay where they are: the pack's template decides on them."""
    engine: EngineApi = request.app.state.engine
    body = parse_chat(await read_object(request))
    check_model(engine, body.model)
    messages = [message.for_template() for message in body.messages]
    prompt_ids = await run_in_threadpool(engine.tokenizer.encode_chat, messages)
    shape = ChatShape(engine, new_id("chatcmpl"), with_logprobs=body.logprobs)
    generation = generation_request(
        engine,
        shape.id,
        body,
        prompt_ids,
        max_tokens=body.max_tokens if body.max_tokens is not None else body.max_completion_tokens,
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_field=shape.prompt_field,
    )
    return await answer(request, generation, shape, body)


class ChatShape:
    """Chat replies in the wire format of the OpenAI API."""

    prompt_field = "messages"

    def __init__(self, engine: EngineApi, request_id: str, with_logprobs: bool) -> None:
        self.id = request_id
        self._engine = engine
        self._with_logprobs = with_logprobs
        self._created = int(time.time())

    def whole(self, text: str, logprobs: Sequence[TokenLogprob], finished: Finished) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(logprobs),
            "finish_reason": finished.reason,
        }
        return self._envelope("chat.completion", [choice])

    def opening(self) -> dict[str, Any]:
        return self._chunk({"role": "assistant", "content": ""}, None, None)

    def delta(self, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return self._chunk({"content": text}, self._logprobs(logprobs), None)

    def closing(self, finished: Finished) -> dict[str, Any]:
        return self._chunk({}, None, finished.reason)

    def usage_only(self) -> dict[str, Any]:
        return self._envelope("chat.completion.chunk", [])

    def _chunk(self, delta: dict[str, Any], logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._envelope("chat.completion.chunk", [choice])

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        return chat_logprobs(entries, self._engine.tokenizer) if self._with_logprobs else None

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._engine.model_id,
            "choices": choices,
        }
