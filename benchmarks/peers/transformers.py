"""transformers on torch, weights of the published GGUF widened to float32 by transformers itself. Optional."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.base import AbsentError, Reply, Stopwatch, row_figures


class Peer:
    """Implements `base.Runtime`. Settings: `gguf`, the published file."""

    def __init__(self) -> None:
        self.model: Any = None

    def open(self, settings: dict[str, Any]) -> dict[str, Any]:
        """See `base.Runtime`."""
        try:
            import accelerate  # noqa: F401  # transformers reads GGUF files with both
            import gguf  # noqa: F401
            import torch
            import transformers
        except ImportError as error:
            wanted = "torch, transformers, accelerate or gguf"
            raise AbsentError(f"{wanted} is absent from this interpreter ({error})") from error
        torch.set_num_threads(settings["threads"])
        torch.set_grad_enabled(False)
        path = Path(settings["gguf"])
        load = transformers.AutoModelForCausalLM.from_pretrained
        self.model = load(str(path.parent), gguf_file=path.name, dtype=torch.float32).eval()
        return {
            "what": f"transformers {transformers.__version__}, eager, float32 from {path.name}, greedy",
            "version": f"torch {torch.__version__}",
            "threads": settings["threads"],
            "busy_threads": 1,  # only wide products are shared out
        }

    def _feed(self, ids: Sequence[int], cache: Any, last: bool) -> Any:
        """Logits [1, L or 1, V] of one forward; `cache` grows by L rows."""
        import torch

        keep = 1 if last else 0  # 0 means all
        rows = torch.tensor([list(ids)])
        return self.model(rows, past_key_values=cache, use_cache=True, logits_to_keep=keep).logits

    def prefill(self, ids: Sequence[int]) -> Reply:
        """See `base.Runtime`."""
        from transformers import DynamicCache

        watch = Stopwatch()
        int(self._feed(ids, DynamicCache(), last=True)[0, -1].argmax())
        return {"figures": {"prefill": watch.figure(len(ids))}}

    def decode(self, ids: Sequence[int], tokens: int, seed: int) -> Reply:
        """See `base.Runtime`; the seed is not used."""
        from transformers import DynamicCache

        cache = DynamicCache()
        made = [int(self._feed(ids, cache, last=True)[0, -1].argmax())]
        watch = Stopwatch()
        for _ in range(tokens - 1):
            made.append(int(self._feed(made[-1:], cache, last=True)[0, -1].argmax()))
        return {"figures": {"decode": watch.figure(tokens - 1)}, "ids": made}

    def rows(self, ids: Sequence[int], widths: Sequence[int], repeats: int) -> Reply:
        """See `base.Runtime`."""
        from transformers import DynamicCache

        cache = DynamicCache()
        self._feed(ids, cache, last=True)
        return {
            "figures": row_figures(
                lambda width: self._feed(ids[:width], cache, last=False),
                lambda width: cache.crop(len(ids)),
                widths,
                repeats,
            )
        }

    def close(self) -> None:
        """See `base.Runtime`."""
        self.model = None
