"""What every reply says beside its text: usage, the acceptance law, counts, rates, timings, logprobs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mtrun.runtime.acceptance.rates import rates
from mtrun.runtime.requests import Finished, TokenLogprob
from mtrun.runtime.server.api import ChatTokenizer, EngineApi
from mtrun.runtime.ticket import Ticket

_LEAST_LOGPROB = -9999.0  # what the OpenAI API sends for a token of no probability; JSON has no infinity


def new_id(prefix: str) -> str:
    """A fresh id for a reply."""
    return f"{prefix}-{uuid.uuid4().hex}"


def acceptance_header(engine: EngineApi) -> dict[str, str]:
    """The configured law, known before the first token, such as `law=cascade rule=tokenv3 alpha=0.95 ...`."""
    law = engine.law()
    dials = {"rule": law["rule"]} if law.get("rule") else {}
    dials |= {name: f"{value:g}" for name, value in law["parameters"].items() if value is not None}
    exact = str(bool(law["distribution_exact"])).lower()
    fields = {"law": law["law"], **dials, "distribution_exact": exact}
    return {"x-mtrun-acceptance": " ".join(f"{name}={value}" for name, value in fields.items())}


def mtrun_object(finished: Finished, ticket: Ticket) -> dict[str, Any]:
    """The `mtrun` key of a reply."""
    decode = finished.decode_seconds
    return {
        "acceptance": asdict(finished.law),
        "counts": asdict(finished.counts),
        "rates": rates(finished.counts),
        "seed": finished.seed,
        "timings": {
            "queue_seconds": ticket.queue_seconds,
            "prefill_seconds": finished.prefill_seconds,
            "decode_seconds": decode,
            "tokens_per_second": finished.completion_tokens / decode if decode > 0 else None,
        },
        "notes": list(finished.notes),
    }


def usage(finished: Finished) -> dict[str, int]:
    """Token counts in the wire format."""
    prompt, completion = finished.prompt_tokens, finished.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def chat_logprobs(entries: Sequence[TokenLogprob], tokenizer: ChatTokenizer) -> dict[str, Any]:
    """The chat shape. `bytes` is null for a token that holds only a part of a character."""
    content = []
    for entry in entries:
        top = [_chat_entry(token_id, logprob, tokenizer) for token_id, logprob in entry.top]
        content.append({**_chat_entry(entry.token_id, entry.logprob, tokenizer), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(entries: Sequence[TokenLogprob], tokenizer: ChatTokenizer, offset: int) -> dict[str, Any]:
    """The legacy shape. `offset` is the number of characters of the reply before the first entry."""
    tokens = [_written(entry.token_id, tokenizer) for entry in entries]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [_finite(entry.logprob) for entry in entries],
        "top_logprobs": [_legacy_top(entry, tokenizer) for entry in entries],
        "text_offset": offsets,
    }


def _legacy_top(entry: TokenLogprob, tokenizer: ChatTokenizer) -> dict[str, float]:
    """Keyed by text, as the legacy shape demands: of two ids with one text the likelier stays."""
    top: dict[str, float] = {}
    for token_id, logprob in entry.top:
        top.setdefault(_written(token_id, tokenizer), _finite(logprob))
    return top


def _chat_entry(token_id: int, logprob: float, tokenizer: ChatTokenizer) -> dict[str, Any]:
    token = _written(token_id, tokenizer)
    whole = "\ufffd" not in token
    return {"token": token, "logprob": _finite(logprob), "bytes": list(token.encode()) if whole else None}


def _written(token_id: int, tokenizer: ChatTokenizer) -> str:
    return tokenizer.decode([token_id], skip_special_tokens=False)


def _finite(logprob: float) -> float:
    return logprob if logprob > _LEAST_LOGPROB else _LEAST_LOGPROB
