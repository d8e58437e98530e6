"""mlx-lm's own generation over the pack's weights as they are stored, on MLX as it comes: no BLAS is bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.peers.base import AbsentError, Figure, Reply, Stopwatch, row_figures


class Peer:
    """Implements `base.Runtime`. Settings: `pack`, a folder with config.json, model*.safetensors and a tokenizer."""

    def __init__(self) -> None:
        self.model: Any = None
        self.tokenizer: Any = None

    def open(self, settings: dict[str, Any]) -> dict[str, Any]:
        """See `base.Runtime`. A pack folder is what `mlx_lm.load` accepts: it passes over the head and the manifest."""
        try:
            import mlx.core as mx
            import mlx_lm
        except ImportError as error:
            raise AbsentError(f"mlx-lm is absent from this interpreter ({error})") from error
        self.model, self.tokenizer, config = mlx_lm.load(settings["pack"], return_config=True)
        self.tokenizer.eos_token_ids = set()
        bits = (config.get("quantization") or {}).get("bits")
        return {
            "what": f"mlx-lm stream_generate, weights as stored ({f'{bits} bits' if bits else 'dense'}), greedy",
            "version": f"{mlx_lm.__version__} on mlx {mx.__version__}",
            "threads": 1,  # MLX's CPU stream is one thread and takes no setting
            "busy_threads": 1,
        }

    def prefill(self, ids: Sequence[int]) -> Reply:
        """See `base.Runtime`."""
        return {"figures": {"prefill": self._run(ids, 1)[0]}}

    def decode(self, ids: Sequence[int], tokens: int, seed: int) -> Reply:
        """See `base.Runtime`; the seed is not used."""
        _, decode, made = self._run(ids, tokens)
        return {"figures": {"decode": decode}, "ids": made}

    def _run(self, ids: Sequence[int], tokens: int) -> tuple[Figure, Figure, list[int]]:
        """Prefill and decode figures, and the tokens."""
        import mlx.core as mx
        from mlx_lm import stream_generate

        made: list[int] = []
        prefill: Figure = {}
        watch = Stopwatch()
        decode: Figure = {}
        for step in stream_generate(self.model, self.tokenizer, mx.array(list(ids)), max_tokens=tokens):
            made.append(step.token)
            if len(made) == 1:
                prefill, watch = watch.figure(len(ids)), Stopwatch()
            decode = watch.figure(tokens - 1)
        mx.synchronize()  # it works one token ahead
        if len(made) != tokens:
            raise RuntimeError(f"{len(made)} tokens instead of {tokens}")
        return prefill, decode, made

    def rows(self, ids: Sequence[int], widths: Sequence[int], repeats: int) -> Reply:
        """See `base.Runtime`."""
        import mlx.core as mx
        from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache

        cache = make_prompt_cache(self.model)

        def forward(width: int) -> None:
            mx.eval(self.model(mx.array([ids[:width]]), cache=cache))

        forward(len(ids))
        return {"figures": row_figures(forward, lambda width: trim_prompt_cache(cache, width), widths, repeats)}

    def close(self) -> None:
        """See `base.Runtime`."""
        self.model = self.tokenizer = None
