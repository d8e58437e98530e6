"""The one tree of typed keys. A field's metadata says what its type cannot: range, text form, secrecy.

OmegaConf converts generously (true is 1.0, "0.5" is 0.5), so `leaves.py` reads the same fields and refuses what a
person did not mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mtrun.lanes.catalogue import LANE_NAMES
from mtrun.runtime.config.size import parse_bytes

# Names equal values, since OmegaConf reads and prints an enum by name, and `typical-pi` is no Python identifier.
Law = Enum(
    "Law",
    [
        ("exact", "exact"),
        ("typical", "typical"),
        ("typical-pi", "typical-pi"),
        ("cascade", "cascade"),
        ("synthetic", "synthetic"),
    ],
    type=str,
)
CascadeRule = Enum(
    "CascadeRule",
    [("opt", "opt"), ("tokenv1", "tokenv1"), ("tokenv2", "tokenv2"), ("tokenv3", "tokenv3")],
    type=str,
)
PackKind = Enum("PackKind", [("named", "named"), ("folder", "folder"), ("hub", "hub")], type=str)


def ranged(default: Any, bounds: str) -> Any:
    """A number that must lie in bounds (`[0, 1)`)."""
    return field(default=default, metadata={"bounds": bounds})


@dataclass(frozen=True)
class AcceptanceConfig:
    """Which acceptance law decides drafted tokens."""

    law: Law = Law["exact"]


@dataclass(frozen=True)
class CascadeConfig:
    """Speculative cascade: the deferral rule and its threshold."""

    rule: CascadeRule | None = None
    alpha: float | None = ranged(None, "[0, 1)")


@dataclass(frozen=True)
class TypicalConfig:
    """Typical acceptance: keep where p(v) > min(eps, threshold * exp(-H(p))), H in nats."""

    threshold: float | None = ranged(None, "(0, 1]")
    eps: float = ranged(1.0, "(0, 1]")


@dataclass(frozen=True)
class SyntheticConfig:
    """Keeps every draft with one probability, whatever the model says."""

    rate: float | None = ranged(None, "[0, 1]")


@dataclass(frozen=True)
class DraftConfig:
    """How drafts are made. A null sampler value means the request's own."""

    depth: int = ranged(3, "[0, 8]")  # tokens drafted a cycle; 0 = plain decoding
    temperature: float | None = ranged(None, "[0, 100]")
    top_p: float | None = ranged(None, "(0, 1]")
    top_k: int | None = ranged(None, "[0, 1000000]")


@dataclass(frozen=True)
class EngineConfig:
    """Threads, memory and context of the engine."""

    threads: int = ranged(1, "[1, 64]")
    memory_limit: str | None = field(default=None, metadata={"size": True})
    prefill_chunk: int = ranged(512, "[1, 65536]")  # prompt tokens read in one forward
    context_limit: int | None = ranged(None, "[1, 10000000]")  # tokens; null = what the pack was made for

    @property
    def memory_limit_bytes(self) -> int | None:
        """The limit in bytes, None = no limit. Raises ValueError on a text that composing would have refused."""
        return None if self.memory_limit is None else parse_bytes(self.memory_limit)


@dataclass(frozen=True)
class SamplerConfig:
    """Sampling where a request is silent; null means the pack's own default."""

    temperature: float | None = ranged(None, "[0, 100]")
    top_p: float | None = ranged(None, "(0, 1]")
    top_k: int | None = ranged(None, "[0, 1000000]")
    min_p: float | None = ranged(None, "[0, 1)")
    presence_penalty: float | None = ranged(None, "[-2, 2]")
    frequency_penalty: float | None = ranged(None, "[-2, 2]")
    repetition_penalty: float | None = ranged(None, "(0, 100]")
    seed: int | None = ranged(None, "[0, 9223372036854775807]")
    max_tokens: int | None = ranged(None, "[1, 10000000]")


@dataclass(frozen=True)
class PackConfig:
    """Which model is served: a name of conf/pack, a folder, or a hub id."""

    source: str | None = None  # as typed
    name: str | None = None  # what replies and reports call it
    kind: PackKind | None = None


@dataclass(frozen=True)
class ServerConfig:
    """Where and for whom the HTTP server listens."""

    host: str = "127.0.0.1"
    port: int = ranged(8383, "[0, 65535]")  # 0 = any free port
    api_key: str | None = field(default=None, metadata={"secret": True})
    no_auth: bool = False  # serve beyond this machine without a key, on purpose
    allowed_origins: list[str] = field(default_factory=list)  # browser origins besides the server's own
    queue_limit: int = ranged(32, "[0, 100000]")  # requests that may wait
    keep_alive_seconds: float = ranged(10.0, "(0, 3600]")  # between comments of a silent stream


@dataclass(frozen=True)
class AuditConfig:
    """Lanes that must be in place, or start-up fails."""

    require: list[str] = field(default_factory=list)


def lane_references() -> dict[str, bool | str]:
    """Every lane as the reference that the auto-arm's stamp resolves."""
    return {name: f"${{stamp.{name}}}" for name in LANE_NAMES}


def missing_stamps() -> dict[str, bool | str]:
    """Every lane as OmegaConf's mark of a mandatory value that is still absent."""
    return dict.fromkeys(LANE_NAMES, "???")


@dataclass(frozen=True)
class RunConfig:
    """One run. `lanes` and `stamp` hold every name of the lane catalogue."""

    acceptance: AcceptanceConfig = field(default_factory=AcceptanceConfig)
    cascade: CascadeConfig = field(default_factory=CascadeConfig)
    typical: TypicalConfig = field(default_factory=TypicalConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    draft: DraftConfig = field(default_factory=DraftConfig)
    lanes: dict[str, bool] = field(default_factory=lane_references)  # type: ignore[arg-type]
    engine: EngineConfig = field(default_factory=EngineConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    pack: PackConfig = field(default_factory=PackConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    stamp: dict[str, bool] = field(default_factory=missing_stamps)  # type: ignore[arg-type]
