"""Inputs that several files measure on. Everything is made from fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest

from mtrun.kernels.native.library import library_path, native_isa

VOCAB = 49_152  # of the default pack


@pytest.fixture(scope="session")
def isa() -> str:
    """The instruction set that native lanes choose here; skips where the library was not built."""
    found = native_isa() if library_path() is not None else None
    if found is None:
        pytest.skip("the native library is not built here")
    return found


@pytest.fixture(scope="session")
def logits() -> np.ndarray:
    """[8, V] float32 rows about as peaked as a trained model's: a normal body and a few tall tokens."""
    rng = np.random.default_rng(0)
    rows = rng.normal(0.0, 2.0, (8, VOCAB))
    rows[np.arange(8)[:, None], rng.integers(0, VOCAB, (8, 12))] += rng.exponential(6.0, (8, 12))
    return rows.astype(np.float32)
