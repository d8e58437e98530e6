"""The KV cache of a native stack: one object for all layers, trimmed exactly."""

from __future__ import annotations

import ctypes
import weakref


class NativeCache:
    """Positions of one request. Freed memory goes back to its stack's pool for the next request."""

    trims_exactly = True  # a shorter length; later rows overwrite

    def __init__(self, library: ctypes.CDLL, stack: object, handle: int) -> None:
        """`stack` is kept alive as long as the cache, whose pages belong to it."""
        self._library, self._stack = library, stack
        self.handle = library.mtrun_kv_new(handle)
        self._free = weakref.finalize(self, library.mtrun_kv_free, self.handle)

    @property
    def offset(self) -> int:
        """Positions held."""
        return self._library.mtrun_kv_length(self.handle)

    def trim(self, count: int) -> int:
        """Forgets the last `count` positions; returns how many there were to forget."""
        return self._library.mtrun_kv_trim(self.handle, count)

    @property
    def nbytes(self) -> int:
        """Bytes reserved, in pages of 256 positions."""
        return self._library.mtrun_kv_bytes(self.handle)
