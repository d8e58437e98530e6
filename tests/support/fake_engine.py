"""A scripted engine without MLX: bytes are tokens, and the reply to a prompt is that prompt in capitals.

Every cycle releases `per_cycle` tokens after `delay` seconds. `script` may replace the reply; `faults` maps a word of
the prompt to an exception that is raised after three tokens; `gate`, while cleared, holds every request before its
first token.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mtrun.runtime.acceptance.counts import Counts
from mtrun.runtime.errors import RequestError
from mtrun.runtime.requests import (
    Chunk,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    LawReport,
    Prefill,
    Sampling,
    TokenLogprob,
)
from mtrun.runtime.worker import Worker

VOCAB = 256
LAW = LawReport("cascade", "tokenv3", {"alpha": 0.95}, False, True, "the law judged every draft")


class ByteTokenizer:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        if messages[0]["role"] == "assistant":
            raise RequestError("The chat template refuses these messages: the first one must be yours.", "messages")
        return self.encode("\n".join(message["content"] for message in messages) or " ")

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode(errors="replace")


@dataclass
class FakeServerConfig:
    host: str = "127.0.0.1"
    port: int = 0
    api_key: str | None = None
    no_auth: bool = False
    allowed_origins: Sequence[str] = ()
    queue_limit: int = 32
    keep_alive_seconds: float = 5.0


@dataclass
class ScriptedGenerator:
    """Deterministic: the same request gives the same events."""

    delay: float = 0.0  # seconds a cycle
    per_cycle: int = 3
    prefill_delay: float = 0.0  # seconds before the first token, in pieces of 10 ms
    script: Callable[[str], str] = str.upper
    faults: dict[str, BaseException] = field(default_factory=dict)
    load_error: BaseException | None = None
    load_gate: threading.Event | None = None  # the load waits for it
    gate: threading.Event = field(default_factory=threading.Event)
    seen: list[GenerationRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def load(self) -> None:
        if self.load_gate is not None:
            self.load_gate.wait()
        if self.load_error is not None:
            raise self.load_error

    def close(self) -> None:
        pass

    def run(self, request: GenerationRequest, cancelled: Callable[[], bool]) -> Iterator[Event]:
        self.seen.append(request)
        prompt = bytes(request.prompt_ids).decode(errors="replace")
        fault = next((error for word, error in self.faults.items() if word in prompt), None)
        if isinstance(fault, RequestError):
            raise fault
        yield Prefill(0, len(request.prompt_ids))
        self._wait(cancelled)
        tokens, reason = self._reply(request, prompt)
        counts = Counts(accepted_by_depth=[0, 0], reached_by_depth=[0, 0])
        sent = 0
        while sent < len(tokens) and not cancelled():
            time.sleep(self.delay)
            if fault is not None and sent >= 3:
                raise fault
            piece = tokens[sent : sent + self.per_cycle]
            sent += len(piece)
            _count(counts, len(piece))
            yield Chunk(bytes(piece).decode(errors="replace"), tuple(piece), _logprobs(request, piece))
        ended: FinishReason = "cancelled" if cancelled() else reason
        seed = request.sampling.seed if request.sampling.seed is not None else 7
        yield Finished(ended, len(request.prompt_ids), sent, seed, LAW, counts, 0.01, 0.02)

    def _wait(self, cancelled: Callable[[], bool]) -> None:
        until = time.monotonic() + self.prefill_delay
        while not cancelled() and (time.monotonic() < until or not self.gate.is_set()):
            time.sleep(0.01)

    def _reply(self, request: GenerationRequest, prompt: str) -> tuple[list[int], FinishReason]:
        text = self.script(prompt)
        cut = min((text.find(stop) for stop in request.stop if stop in text), default=len(text))
        tokens = list(text[:cut].encode())
        if request.max_tokens is not None and len(tokens) > request.max_tokens:
            return tokens[: request.max_tokens], "length"
        return tokens, "stop"


def _count(counts: Counts, tokens: int) -> None:
    """One cycle at depth 2 that kept all of its drafts but one where fewer than three tokens came out."""
    accepted = tokens - 1
    rejected = accepted < 2
    counts.cycles += 1
    counts.verify_calls += 1
    counts.drafted += 2
    counts.positions += accepted + rejected
    counts.accepted += accepted
    counts.deferred += rejected
    counts.resamples += rejected
    counts.bonus += not rejected
    counts.emitted += tokens
    counts.generated += tokens
    for depth in range(accepted + rejected):
        counts.reached_by_depth[depth] += 1
        counts.accepted_by_depth[depth] += depth < accepted


def _logprobs(request: GenerationRequest, piece: Sequence[int]) -> tuple[TokenLogprob, ...]:
    if request.top_logprobs is None:
        return ()
    others = [(token, -1.0 - token) for token in range(65, 65 + request.top_logprobs)]
    return tuple(TokenLogprob(token, -0.5, tuple(others)) for token in piece)


@dataclass
class FakeEngine:
    generator: ScriptedGenerator = field(default_factory=ScriptedGenerator)
    server: FakeServerConfig = field(default_factory=FakeServerConfig)
    model_id: str = "tiny/fake"
    created: int = 1_700_000_000
    max_tokens_default: int | None = None
    context_limit: int = 4096
    vocab_size: int = VOCAB
    draft_depth: int = 2
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    worker: Worker = field(init=False)

    def __post_init__(self) -> None:
        self.worker = Worker(self.generator, self.server.queue_limit)

    def sampling(self, overrides: dict[str, Any]) -> Sampling:
        return replace(Sampling(temperature=0.7, top_p=0.9), **overrides)

    def law(self) -> dict[str, Any]:
        return {
            "law": "cascade",
            "rule": "tokenv3",
            "parameters": {"alpha": 0.95},
            "distribution_exact": False,
            "decided_by": {"alpha": {"source": "command line", "text": "cascade.alpha=0.95"}},
        }

    def audit(self) -> dict[str, Any]:
        lane = {"lane": "frspec", "state": "armed", "code": "proved", "reason": "argmax agrees"}
        return {"schema": "mtrun.audit/1", "summary": "1 lane: 1 armed", "lanes": [lane]}

    def sampler_in_force(self) -> dict[str, Any]:
        return {"temperature": 0.7, "top_p": 0.9}

    def memory(self) -> dict[str, Any]:
        return {"active_bytes": 0, "limit_bytes": None}
