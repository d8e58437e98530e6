"""Penalties and bias: what is added to a row of logits because of what was already said.

Each verified row sees the tokens before its own position, accepted drafts included. Presence and frequency look at
generated tokens; repetition also at the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mtrun.kernels.arrays import cast, namespace, of_module
from mtrun.runtime.requests import Sampling


class Adjuster:
    """The running token statistics of one request. `active` is False when no row would change."""

    def __init__(self, sampling: Sampling, prompt_ids: Sequence[int], vocab_size: int) -> None:
        self.sampling = sampling
        self.counting = bool(
            sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0
        )
        self.active = self.counting or bool(sampling.logit_bias)
        self._generated = np.zeros(vocab_size if self.counting else 0, dtype=np.float32)  # [V] times generated
        self._prompt = np.zeros(vocab_size if self.counting else 0, dtype=bool)  # [V] occurs in the prompt
        self._bias = np.zeros(vocab_size, dtype=np.float32) if sampling.logit_bias else None  # [V]
        if self.counting:
            self._prompt[list(prompt_ids)] = True
        for token, bias in sampling.logit_bias.items():
            assert self._bias is not None
            self._bias[token] += bias

    def commit(self, tokens: Sequence[int]) -> None:
        """Counts tokens that were really emitted."""
        if self.counting:
            np.add.at(self._generated, list(tokens), 1.0)

    def __call__(self, logits: Any, before: Any, ids: Any = None) -> Any:
        """Adjusted copy of logits [R, V], or [R, K] of the tokens ids [K]; arrays of one module.

        before: [R, D] int32 drafts that precede each row's position beyond the committed text, -1 = none; None = no row
        has any.
        """
        if not self.active:
            return logits
        if self.counting:
            logits = self._penalise(logits, before, ids)
        if self._bias is not None:
            bias = of_module(self._bias, namespace(logits))
            logits = logits + (bias if ids is None else bias[ids])
        return logits

    def _penalise(self, logits: Any, before: Any, ids: Any) -> Any:
        xp = namespace(logits)
        counts, prompt = of_module(self._generated, xp), of_module(self._prompt, xp)
        tokens = xp.arange(counts.shape[0]) if ids is None else ids
        if ids is not None:
            counts, prompt = counts[ids], prompt[ids]
        counts, prompt = counts[None], prompt[None]  # [1, K]
        if before is not None:
            for column in range(before.shape[1]):
                counts = counts + cast(before[:, column : column + 1] == tokens[None], xp.float32)
        how = self.sampling
        seen = (counts > 0) | prompt
        if how.repetition_penalty != 1.0:
            scaled = xp.where(logits > 0, logits / how.repetition_penalty, logits * how.repetition_penalty)
            logits = xp.where(seen, scaled, logits)
        generated = cast(counts > 0, xp.float32)
        return logits - how.frequency_penalty * counts - how.presence_penalty * generated
