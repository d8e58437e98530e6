"""The engine: one prepared run behind one inference thread. The command line, the server and Python use this road.

with Engine(compose(["profile=cascade-tokenv3", "cascade.alpha=0.9"])) as engine:
    reply = engine.generate([{"role": "user", "content": "Hello"}], max_tokens=64)
    print(reply.text, reply.finished.law.distribution_exact)
"""

from __future__ import annotations

import atexit
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mtrun.runtime import memory
from mtrun.runtime.config.compose import Composed
from mtrun.runtime.config.schema import ServerConfig
from mtrun.runtime.errors import RequestError
from mtrun.runtime.generator import MtpGenerator, configured_law
from mtrun.runtime.packs.tokenizer import PackTokenizer
from mtrun.runtime.preparation import Preparation, prepare
from mtrun.runtime.requests import Chunk, Event, Finished, GenerationRequest, Sampling
from mtrun.runtime.verdict_table import table
from mtrun.runtime.worker import Worker

Prompt = str | Sequence[int] | Sequence[dict[str, Any]]  # text, token ids, or chat messages

_KNOBS = {
    "cascade": ("cascade.rule", "cascade.alpha"),
    "typical": ("typical.threshold", "typical.eps"),
    "typical-pi": ("typical.threshold", "typical.eps"),
    "synthetic": ("synthetic.rate",),
}


@dataclass(frozen=True)
class Reply:
    """A whole completion."""

    text: str
    token_ids: tuple[int, ...]
    finished: Finished


class Engine:
    """Implements `runtime.server.api.EngineApi`. Construction settles the run and starts loading; `ready` waits."""

    def __init__(self, composed: Composed) -> None:
        """Raises ConfigurationError and PackError for whatever can be known before weights are read."""
        self.prepared: Preparation = prepare(composed)
        self.created = int(time.time())
        self._generator = MtpGenerator(self.prepared)
        self.worker = Worker(self._generator, self.prepared.config.server.queue_limit)
        atexit.register(self.close)  # an engine nobody closed must still end its thread before the interpreter does

    def ready(self, timeout: float | None = None) -> Engine:
        """Waits until the model is loaded and every lane has its verdict. Raises what loading raised."""
        self.worker.wait_ready(timeout)
        return self

    def __enter__(self) -> Engine:
        return self.ready()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, grace_seconds: float = 0.0) -> None:
        """Ends the inference thread; running requests get `grace_seconds`."""
        self.worker.stop(grace_seconds)
        atexit.unregister(self.close)

    # -- requests ---------------------------------------------------------------------------------------------------
    def request(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        top_logprobs: int | None = None,
        ignore_eos: bool = False,
        depth: int | None = None,
        **sampling: Any,
    ) -> GenerationRequest:
        """A request over this engine's defaults; `sampling` takes the fields of `Sampling`. Raises RequestError."""
        return GenerationRequest(
            id=f"mtrun-{uuid.uuid4().hex[:16]}",
            prompt_ids=tuple(self._prompt_ids(prompt)),
            sampling=self.sampling(sampling),
            max_tokens=self.max_tokens_default if max_tokens is None else max_tokens,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            top_logprobs=top_logprobs,
            ignore_eos=ignore_eos,
            depth=depth,
        )

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Event]:
        """Events of one request as they come; options as for `request`. Leaving the loop early cancels it."""
        ticket = self.worker.submit(self.request(prompt, **options))
        try:
            yield from ticket
        finally:
            ticket.cancel()

    def generate(self, prompt: Prompt, **options: Any) -> Reply:
        """One request to its end; options as for `request`."""
        text: list[str] = []
        ids: list[int] = []
        for event in self.stream(prompt, **options):
            if isinstance(event, Chunk):
                text.append(event.text)
                ids.extend(event.token_ids)
            elif isinstance(event, Finished):
                return Reply("".join(text), tuple(ids), event)
        raise RuntimeError("a request ended without a Finished event")

    def _prompt_ids(self, prompt: Prompt) -> Sequence[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if prompt and isinstance(prompt[0], dict):
            return self.tokenizer.encode_chat(prompt)  # type: ignore[arg-type]
        return [int(token) for token in prompt]  # type: ignore[arg-type]

    # -- what is in force ---------------------------------------------------------------------------------------------
    @property
    def tokenizer(self) -> PackTokenizer:
        return self.prepared.tokenizer

    @property
    def server(self) -> ServerConfig:
        return self.prepared.config.server

    @property
    def model_id(self) -> str:
        return self.prepared.config.pack.name or self.prepared.pack.name

    @property
    def max_tokens_default(self) -> int | None:
        return self.prepared.config.sampler.max_tokens

    @property
    def context_limit(self) -> int:
        return self.prepared.context_limit

    @property
    def vocab_size(self) -> int:
        return self.prepared.pack.vocab_size

    @property
    def draft_depth(self) -> int:
        return self.prepared.config.draft.depth if self.prepared.pack.head.ok else 0

    def sampling(self, overrides: dict[str, Any]) -> Sampling:
        """The request's fields over the profile's over the pack's over the library's. Raises RequestError."""
        known = {item.name for item in fields(Sampling)}
        for name in overrides:
            if name not in known:
                raise RequestError(f"{name} is no sampling field: use one of {', '.join(sorted(known))}.", name)
        merged = {name: value for name, (value, _) in self._sampler().items() if value is not None}
        return Sampling(**{**merged, **{name: value for name, value in overrides.items() if value is not None}})

    def _sampler(self) -> dict[str, tuple[Any, dict[str, str]]]:
        """Sampler defaults with where each comes from."""
        out: dict[str, tuple[Any, dict[str, str]]] = {}
        for name in (item.name for item in fields(Sampling) if item.name != "logit_bias"):
            configured = getattr(self.prepared.config.sampler, name)
            packed = getattr(self.prepared.pack.sampler, name, None)
            if configured is not None:
                out[name] = (configured, self._decided_by(f"sampler.{name}"))
            elif packed is not None:
                out[name] = (packed, {"source": "pack", "text": "the pack's sampler defaults"})
            else:
                out[name] = (getattr(Sampling(), name), {"source": "default", "text": "off"})
        return out

    def sampler_in_force(self) -> dict[str, Any]:
        """Each sampler default with its value and provenance."""
        return {name: {"value": value, "decided_by": by} for name, (value, by) in self._sampler().items()}

    def law(self) -> dict[str, Any]:
        """The acceptance law in force, its knobs, and where each came from."""
        decoder = self._generator.decoder
        law = decoder.parts.law if decoder is not None else configured_law(self.prepared)
        keys = ("acceptance.law", *_KNOBS.get(law.name, ()))
        return {
            "law": law.name,
            "rule": law.rule,
            "parameters": dict(law.parameters),
            "distribution_exact": law.distribution_exact,
            "decided_by": {key: self._decided_by(key) for key in keys},
        }

    def _decided_by(self, key: str) -> dict[str, str]:
        found = self.prepared.composed.provenance[key]
        return {"source": found.source, "text": found.text}

    def audit(self) -> dict[str, Any]:
        """The audit object: every lane with its verdict. Raises StampError while loading."""
        return self._generator.registry.to_json(self.prepared.evidence, self.law())

    def verdict_table(self, width: int = 100) -> str:
        """The audit for people."""
        return table(self._generator.registry.verdicts(), width)

    def memory(self) -> dict[str, int | None]:
        return memory.usage(self.prepared.config.engine.memory_limit_bytes)
