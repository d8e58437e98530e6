"""The decoder: requests in, events out. Owns the parts that lanes may have replaced; keeps nothing between requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from mtrun.kernels.arrays import cast, logsumexp, namespace, pick, take
from mtrun.kernels.host import floats, integers
from mtrun.kernels.rows import RowFilter, top_ids
from mtrun.runtime.acceptance.exact import ExactLaw
from mtrun.runtime.decode.depth import ConstantDepth, DepthPolicy, Spent
from mtrun.runtime.decode.keys import Keys, fresh_seed
from mtrun.runtime.decode.output import Output, StreamFactory
from mtrun.runtime.decode.penalties import Adjuster
from mtrun.runtime.decode.session import Session
from mtrun.runtime.errors import RequestError
from mtrun.runtime.parts import Parts
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


@dataclass(frozen=True)
class DecodeSettings:
    """What the configuration fixes for every request."""

    depth: int  # drafts a cycle; 0 = plain decoding
    prefill_chunk: int  # prompt tokens read between two looks at cancellation
    context_limit: int  # tokens of prompt and reply together
    eos: frozenset[int]
    draft_temperature: float | None = None  # None = the request's own
    draft_top_p: float | None = None
    draft_top_k: int | None = None


class Decoder:
    """Runs one request at a time on the thread that calls `run`."""

    def __init__(self, parts: Parts, settings: DecodeSettings, text_stream: StreamFactory) -> None:
        self.parts, self.settings, self._text_stream = parts, settings, text_stream

    def run(self, request: GenerationRequest, cancelled: Callable[[], bool]) -> Iterator[Event]:
        """Yields Prefill and Chunk events and ends with Finished. Raises RequestError before anything is read."""
        self._check(request)
        return self._run(request, cancelled)

    def _check(self, request: GenerationRequest) -> None:
        room = self.settings.context_limit - len(request.prompt_ids)
        if not request.prompt_ids:
            raise RequestError("The prompt is empty: send at least one token.", "prompt")
        if room < 1:
            limit = self.settings.context_limit
            sentence = f"The prompt has {len(request.prompt_ids)} tokens and the context limit is {limit}: shorten it."
            raise RequestError(sentence, "prompt")
        wrong = [token for token in request.prompt_ids if not 0 <= token < self.parts.trunk.vocab_size]
        if wrong:
            limit = self.parts.trunk.vocab_size
            raise RequestError(f"Token id {wrong[0]} is outside the vocabulary: send ids below {limit}.", "prompt")

    def _run(self, request: GenerationRequest, cancelled: Callable[[], bool]) -> Iterator[Event]:
        started = time.monotonic()
        depth = self.depth_of(request)
        session = self.session(request, depth)
        policy = self._policy(request, depth)
        output = self._output(request)
        finish: FinishReason | None = None
        for done in self._prefill(session, request.prompt_ids):
            yield Prefill(done, len(request.prompt_ids))
            if cancelled():
                finish = "cancelled"
                break
        read = time.monotonic()
        tokens = [] if finish else [session.primary]
        while finish is None:
            released = output.push(tokens)
            self._count(session, tokens, released.tokens)
            logprobs = self._logprobs(request, session, released.tokens)
            finish = released.finish
            text = released.text
            room = self.settings.context_limit - session.length - 1
            if finish is None and room < 1:
                finish, text = "length", text + output.close()
            if released.tokens or text:
                yield Chunk(text, released.tokens, logprobs)
            if finish is None and cancelled():
                finish = "cancelled"
            if finish is None:
                tokens = self._cycle(session, policy, room - 1)
        spent = (read - started, time.monotonic() - read)
        yield self._finished(request, session, finish, output.count, spent, depth, policy.notes())

    def _policy(self, request: GenerationRequest, depth: int) -> DepthPolicy:
        """A fresh policy of the request's depths; where nothing may be drafted there is nothing to choose."""
        return self.parts.depth_policy(depth, request.sampling.seed is not None) if depth else ConstantDepth(0)

    @staticmethod
    def _cycle(session: Session, policy: DepthPolicy, room: int) -> list[int]:
        """One cycle at the policy's depth; returns the committed tokens."""
        began = time.perf_counter()
        tokens = session.step(policy.choose(session.source, room))
        seconds = time.perf_counter() - began
        policy.observe(Spent(session.drafted_by, session.drafted, len(tokens) - 1, seconds))
        return tokens

    def depth_of(self, request: GenerationRequest) -> int:
        """The deepest a cycle may draft: the request's depth, at most the configured one and what the parts can."""
        wanted = self.settings.depth if request.depth is None else min(request.depth, self.settings.depth)
        return min(wanted, self.parts.max_depth)

    def session(self, request: GenerationRequest, depth: int) -> Session:
        """Fresh decoding state for a request; nothing of an earlier one survives."""
        sampling = request.sampling
        how = RowFilter(sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
        return Session(
            trunk=self.parts.trunk,
            caches=self.parts.cache_factory(),
            drafter=self.parts.drafter() if depth else None,
            verify=self.parts.verify,
            law=ExactLaw() if how.greedy else self.parts.law,
            how=how,
            draft_how=self._draft_filter(how),
            adjust=Adjuster(sampling, request.prompt_ids, self.parts.trunk.vocab_size),
            keys=Keys(fresh_seed() if sampling.seed is None else sampling.seed),
            target_rows=self.parts.target_rows,
        )

    def _draft_filter(self, how: RowFilter) -> RowFilter:
        """The draft's own law, from the settings; a greedy request drafts greedily."""
        if how.greedy:
            return how
        own = {
            "temperature": self.settings.draft_temperature,
            "top_p": self.settings.draft_top_p,
            "top_k": self.settings.draft_top_k,
        }
        return replace(how, **{name: value for name, value in own.items() if value is not None})

    def _output(self, request: GenerationRequest) -> Output:
        eos = frozenset() if request.ignore_eos else self.settings.eos
        return Output(self._text_stream(), stop=request.stop, eos=eos, max_tokens=request.max_tokens)

    def _prefill(self, session: Session, prompt: tuple[int, ...]) -> Iterator[int]:
        """Yields how many prompt tokens have been read, after each chunk."""
        size = self.settings.prefill_chunk
        for start in range(0, len(prompt), size):
            end = min(start + size, len(prompt))
            session.prefill(list(prompt[start:end]), prompt[end] if end < len(prompt) else None)
            yield end

    @staticmethod
    def _count(session: Session, made: list[int], taken: tuple[int, ...]) -> None:
        session.counts.generated += len(taken)
        if session.drafted:
            session.counts.truncated += len(made) - len(taken)

    @staticmethod
    def _logprobs(request: GenerationRequest, session: Session, tokens: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
        if request.top_logprobs is None or not tokens:
            return ()
        assert session.last_logits is not None
        xp = namespace(session.last_logits)
        rows = cast(session.last_logits[: len(tokens)], xp.float32)
        logp = rows - logsumexp(rows)
        chosen = floats(pick(logp, xp.array(tokens, dtype=xp.int32)))
        ids = top_ids(logp, max(request.top_logprobs, 1))
        values = take(logp, ids)
        out = []
        for row, (token, logprob) in enumerate(zip(tokens, chosen, strict=True)):
            best = zip(integers(ids[row]), floats(values[row]), strict=True)
            out.append(TokenLogprob(token, logprob, tuple(best)[: request.top_logprobs]))
        return tuple(out)

    def law_report(self, sampling: Sampling, depth: int) -> LawReport:
        """Which law decides a request with this sampling and depth, and why, before it runs."""
        law = self.parts.law
        if depth == 0 or self.parts.max_depth == 0:
            reason = "nothing is drafted: plain decoding keeps the model's own distribution"
            return LawReport(law.name, law.rule, law.parameters, True, False, reason)
        if sampling.temperature == 0:
            reason = "temperature 0: drafts are matched against the argmax under every law"
            return LawReport(law.name, law.rule, law.parameters, True, False, reason)
        return LawReport(law.name, law.rule, law.parameters, law.distribution_exact, True, "decided every draft")

    def _finished(
        self,
        request: GenerationRequest,
        session: Session,
        reason: FinishReason,
        completion: int,
        seconds: tuple[float, float],
        depth: int,
        of_policy: tuple[str, ...],
    ) -> Finished:
        reread = tuple(f"{count} cycles read their kept rows again: {why}" for why, count in session.reforwards.items())
        return Finished(
            reason=reason,
            prompt_tokens=len(request.prompt_ids),
            completion_tokens=completion,
            seed=session.keys.seed,
            law=self.law_report(request.sampling, depth),
            counts=session.counts,
            prefill_seconds=seconds[0],
            decode_seconds=seconds[1],
            notes=(*reread, *of_policy),
        )
