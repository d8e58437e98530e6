"""Memory: what a pack and a request will need, worked out before anything is allocated."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from mtrun.runtime.errors import CapacityError, ConfigurationError

MIB = 2**20


@dataclass(frozen=True)
class Footprint:
    """What the model's arrays take, in bytes. float32 throughout; an upper estimate, not a measurement."""

    weights: int  # trunk and head, dense
    draft_rows: int  # the trimmed lm_head's own copy
    cache_per_token: int  # trunk and head KV
    prefill_per_token: int  # widest activations of a prompt chunk
    row: int  # one vocabulary row with the copies that filtering makes

    def request(self, prompt: int, reply: int, chunk: int, depth: int) -> int:
        """Bytes of one request beyond the weights: caches for every token, one prompt chunk, D + 1 rows."""
        caches = (prompt + reply + depth) * self.cache_per_token
        return caches + min(prompt, chunk) * self.prefill_per_token + (depth + 1) * self.row


def footprint(config: dict[str, Any], float32_bytes: int, cache_bytes: int, draft_vocab: int | None) -> Footprint:
    """From a pack's config.json numbers; `cache_bytes` is the family's KV size of one token."""
    hidden, wide = int(config["hidden_size"]), int(config.get("intermediate_size") or 4 * config["hidden_size"])
    layers = int(config["num_hidden_layers"])
    return Footprint(
        weights=float32_bytes,
        draft_rows=4 * hidden * (draft_vocab or 0),
        cache_per_token=cache_bytes + cache_bytes // max(layers, 1),
        prefill_per_token=4 * (8 * hidden + 3 * wide),
        row=4 * 6 * int(config["vocab_size"]),
    )


def check_boot(need: Footprint, limit: int | None) -> None:
    """Raises ConfigurationError when the weights alone pass engine.memory_limit."""
    total = need.weights + need.draft_rows
    if limit is not None and total > limit:
        raise ConfigurationError(
            f"the weights need {total / MIB:.0f} MiB and engine.memory_limit is {limit / MIB:.0f} MiB: "
            "raise the limit or choose a smaller pack"
        )


def check_request(need: Footprint, limit: int | None, prompt: int, reply: int, chunk: int, depth: int) -> None:
    """Raises CapacityError, before prefill, when a request would pass engine.memory_limit together with the weights."""
    if limit is None:
        return
    weights, request = need.weights + need.draft_rows, need.request(prompt, reply, chunk, depth)
    if weights + request > limit:
        raise CapacityError(
            f"A prompt of {prompt} tokens with up to {reply} new ones needs {request / MIB:.0f} MiB beside "
            f"{weights / MIB:.0f} MiB of weights, and engine.memory_limit is {limit / MIB:.0f} MiB: "
            "send a shorter prompt or a smaller max_tokens."
        )


def usage(limit: int | None) -> dict[str, int | None]:
    """What the process holds now, in bytes: resident, MLX's live and cached arrays, MLX's peak, and the limit."""
    import mlx.core as mx
    import psutil

    return {
        "resident_bytes": psutil.Process().memory_info().rss,
        "mlx_active_bytes": mx.get_active_memory(),
        "mlx_cache_bytes": mx.get_cache_memory(),
        "mlx_peak_bytes": mx.get_peak_memory(),
        "limit_bytes": limit,
    }


def give_back() -> None:
    """Hands freed memory back to the system, where the C library keeps it for itself (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
