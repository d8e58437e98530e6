"""The row kernel: logits to filtered rows, in one native pass a row and without a full sort.

The reference is `kernels.rows.filter_rows`; the two agree to float32 rounding of the exponentials.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from mtrun.kernels.native.library import Filter, NativeError, check, pointer


class RowFilters:
    """Filters rows with one set of kernels. Belongs to one thread at a time."""

    def __init__(self, library: ctypes.CDLL, isa: str) -> None:
        """Raises NativeError when `isa` cannot run here."""
        self.library = library
        handle = library.mtrun_rows_new(isa.encode())
        if handle is None:
            raise NativeError(f"no {isa} kernels here")
        self.handle: int = handle
        self._free = weakref.finalize(self, library.mtrun_rows_free, handle)

    @staticmethod
    def slots(how: Any, vocab: int) -> int:
        """Slots of a row under the filter: 1 greedy, top_k compact, `vocab` dense."""
        if how.greedy:
            return 1
        return how.top_k if how.compact(vocab) else vocab

    def filter(self, logits: np.ndarray, how: Any) -> tuple[np.ndarray | None, np.ndarray]:
        """logits [R, V] float32, rows contiguous -> ids [R, K] int32 ascending (None = dense), probs [R, K] float64.

        Raises NativeError for a row without a finite logit.
        """
        if logits.dtype != np.float32 or logits.strides[1] != 4:
            logits = np.ascontiguousarray(logits, dtype=np.float32)
        count, vocab = logits.shape
        slots = self.slots(how, vocab)
        compact = slots < vocab or how.greedy
        ids = np.empty((count, slots if compact else 0), dtype=np.int32)
        probs = np.empty((count, slots), dtype=np.float64)
        settings = Filter(how.temperature, how.top_p, how.min_p, how.top_k)
        check(
            self.library.mtrun_rows_filter(
                self.handle,
                pointer(logits),
                count,
                logits.strides[0] // 4,
                vocab,
                ctypes.byref(settings),
                slots,
                pointer(ids),
                pointer(probs),
            )
        )
        return (ids if compact else None), probs
