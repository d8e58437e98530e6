"""What the server asks of an engine. `runtime.engine.Engine` is one; a scripted one serves the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mtrun.runtime.requests import Sampling
from mtrun.runtime.worker import Worker

Message = dict[str, Any]  # role, content (a string), and name or tool_call_id where the client sent them


class ServerSettings(Protocol):
    """The `server` group of the configuration."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def api_key(self) -> str | None: ...
    @property
    def no_auth(self) -> bool: ...
    @property
    def allowed_origins(self) -> Sequence[str]: ...
    @property
    def queue_limit(self) -> int: ...
    @property
    def keep_alive_seconds(self) -> float: ...


class ChatTokenizer(Protocol):
    """Text in, ids out. Called from several threads at once."""

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the rendered chat template. Raises RequestError(field="messages") where the template refuses."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


class EngineApi(Protocol):
    """An engine as the server sees it. Every method may be called from any thread, in every state of the worker."""

    @property
    def worker(self) -> Worker: ...
    @property
    def tokenizer(self) -> ChatTokenizer: ...
    @property
    def server(self) -> ServerSettings: ...
    @property
    def model_id(self) -> str: ...
    @property
    def created(self) -> int:
        """Unix time, in seconds."""
        ...

    @property
    def max_tokens_default(self) -> int | None: ...
    @property
    def context_limit(self) -> int:
        """Positions of prompt and reply together."""
        ...

    @property
    def vocab_size(self) -> int: ...
    @property
    def draft_depth(self) -> int:
        """The configured draft depth: the most that a request may ask for."""
        ...

    def sampling(self, overrides: dict[str, Any]) -> Sampling:
        """The request's fields merged over the profile's and the pack's defaults."""
        ...

    def law(self) -> dict[str, Any]:
        """law, rule, parameters, distribution_exact, and decided_by for each knob."""
        ...

    def audit(self) -> dict[str, Any]: ...

    def sampler_in_force(self) -> dict[str, Any]: ...

    def memory(self) -> dict[str, Any]: ...
