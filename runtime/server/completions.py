"""POST /v1/completions, the legacy text endpoint."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from mtrun.runtime.errors import RequestError
from mtrun.runtime.requests import Finished, TokenLogprob
from mtrun.runtime.server.api import EngineApi
from mtrun.runtime.server.body import read_object
from mtrun.runtime.server.exchange import answer, check_model, generation_request
from mtrun.runtime.server.reply import completion_logprobs, new_id
from mtrun.runtime.server.schemas import parse_completion

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """A continuation of one prompt, text or token ids, whole or streamed."""
    engine: EngineApi = request.app.state.engine
    body = parse_completion(await read_object(request))
    check_model(engine, body.model)
    if isinstance(body.prompt, str):
        prompt_ids = await run_in_threadpool(engine.tokenizer.encode, body.prompt)
    else:
        prompt_ids = _checked_ids(body.prompt, engine.vocab_size)
    shape = CompletionShape(engine, new_id("cmpl"), with_logprobs=body.logprobs is not None)
    generation = generation_request(
        engine,
        shape.id,
        body,
        prompt_ids,
        max_tokens=body.max_tokens,
        top_logprobs=body.logprobs,
        prompt_field=shape.prompt_field,
    )
    return await answer(request, generation, shape, body)


def _checked_ids(ids: list[int], vocab_size: int) -> list[int]:
    highest = max(ids)
    if highest >= vocab_size:
        raise RequestError(f"Send prompt with ids below {vocab_size}, the vocabulary's size, not {highest}.", "prompt")
    return ids


class CompletionShape:
    """Text completions in the wire format of the OpenAI API."""

    prompt_field = "prompt"

    def __init__(self, engine: EngineApi, request_id: str, with_logprobs: bool) -> None:
        self.id = request_id
        self._engine = engine
        self._with_logprobs = with_logprobs
        self._created = int(time.time())
        self._offset = 0  # characters of the tokens already written

    def whole(self, text: str, logprobs: Sequence[TokenLogprob], finished: Finished) -> dict[str, Any]:
        return self._envelope([self._choice(text, self._logprobs(logprobs), finished.reason)])

    def opening(self) -> None:
        return None

    def delta(self, text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return self._envelope([self._choice(text, self._logprobs(logprobs), None)])

    def closing(self, finished: Finished) -> dict[str, Any]:
        return self._envelope([self._choice("", None, finished.reason)])

    def usage_only(self) -> dict[str, Any]:
        return self._envelope([])

    def _choice(self, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        value = completion_logprobs(entries, self._engine.tokenizer, self._offset)
        self._offset += sum(map(len, value["tokens"]))
        return value

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self._created,
            "model": self._engine.model_id,
            "choices": choices,
        }
