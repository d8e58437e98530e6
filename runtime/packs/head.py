"""The recursive MTP head for llama-like trunks: one decoder layer over [normed hidden, normed next embedding].

    x = proj([hidden_norm(h_i); embed_norm(e(t_{i+1}))])    y = norm(layer(x))    logits = lm_head(y)

y_i predicts t_{i+2}; deeper drafts feed y back as the hidden of the next pair (the chain). The layout follows the MTP
module of DeepSeek-V3 (arXiv 2412.19437, section 2.2), hidden first, one shared layer for every depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache
from mlx_lm.models.llama import ModelArgs, TransformerBlock


class MtpHead(nn.Module):
    """Implements `runtime.packs.contract.Head`. `args` are the trunk's own: the layer has the trunk's shape."""

    max_depth = 8

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        width, eps = args.hidden_size, args.rms_norm_eps
        self.hidden_norm = nn.RMSNorm(width, eps=eps)
        self.embed_norm = nn.RMSNorm(width, eps=eps)
        self.proj = nn.Linear(2 * width, width, bias=False)
        self.layer = TransformerBlock(args)
        self.norm = nn.RMSNorm(width, eps=eps)
        self.args = args
        self.stored: Callable[[], dict[str, mx.array]] = (
            self._own
        )  # parameters as the pack's files hold them: dense, or affine triples

    def _own(self) -> dict[str, mx.array]:
        return dict(cast(list[tuple[str, mx.array]], tree_flatten(self.parameters())))

    def new_caches(self) -> list[Any]:
        return [KVCache()]

    def fuse(self, hidden: mx.array, embedded: mx.array) -> mx.array:
        """hidden [B, L, H] and embedded next tokens [B, L, H] -> the layer's input [B, L, H]."""
        return self.proj(mx.concatenate([self.hidden_norm(hidden), self.embed_norm(embedded)], axis=-1))

    def forward(self, hidden: mx.array, embedded: mx.array, caches: list[Any], depth: int) -> mx.array:
        """See `contract.Head`. One layer serves every depth, so `depth` (0 = from the trunk) changes nothing here."""
        x = self.fuse(hidden, embedded)
        mask: Any = create_attention_mask(x, caches[0])  # an array, None, or the word "causal"
        return self.norm(self.layer(x, mask, caches[0]))
