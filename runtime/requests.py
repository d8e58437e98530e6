"""What a caller asks of the engine and what comes back, free of any wire format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mtrun.runtime.acceptance.counts import Counts

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Sampling:
    """Every knob resolved to a number: pack defaults, profile and request have already been merged."""

    temperature: float = 1.0  # >= 0; 0 is greedy
    top_p: float = 1.0  # (0, 1]; 1 is off
    top_k: int = 0  # >= 0; 0 is off
    min_p: float = 0.0  # [0, 1); 0 is off
    presence_penalty: float = 0.0  # [-2, 2], subtracted once from every token already generated
    frequency_penalty: float = 0.0  # [-2, 2], subtracted once for each time a token was generated
    repetition_penalty: float = (
        1.0  # > 0; divides positive and multiplies negative logits of prompt and generated tokens
    )
    logit_bias: dict[int, float] = field(default_factory=dict)  # token id -> added to its logit, [-100, 100]
    seed: int | None = None  # None: a fresh one is drawn and reported


@dataclass(frozen=True)
class GenerationRequest:
    """One completion. Token ids in, text and token ids out."""

    id: str
    prompt_ids: tuple[int, ...]  # at least one
    sampling: Sampling
    max_tokens: int | None = None  # >= 1; None = up to the context limit
    stop: tuple[str, ...] = ()  # non-empty strings; never emitted
    top_logprobs: int | None = None  # None = no logprobs; n = also the n likeliest alternatives, 0 <= n <= 20
    ignore_eos: bool = False
    depth: int | None = None  # draft depth for this request; None = draft.depth


@dataclass(frozen=True)
class TokenLogprob:
    """Natural log-probabilities under the target's own row at temperature 1, unfiltered, after penalties and bias."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), likeliest first


@dataclass(frozen=True)
class Prefill:
    """Progress of reading the prompt, in tokens."""

    done: int
    total: int


@dataclass(frozen=True)
class Chunk:
    """What one cycle released. `text` may be empty while a stop string or a UTF-8 character is still open."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class LawReport:
    """Which law made a reply. `engaged` is false where the law did not decide (greedy, depth 0), with the reason."""

    law: str
    rule: str | None
    parameters: dict[str, float]
    distribution_exact: bool
    engaged: bool
    reason: str


@dataclass(frozen=True)
class Finished:
    """The last event of every request."""

    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int  # tokens returned: past EOS, stop or max_tokens nothing is counted
    seed: int
    law: LawReport
    counts: Counts
    prefill_seconds: float
    decode_seconds: float
    notes: tuple[str, ...] = ()  # request-time stand-asides, each with its reason


Event = Prefill | Chunk | Finished
