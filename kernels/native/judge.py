"""A cycle decided in native code: rows aligned, judged by the law and the next token drawn, in one call.

The reference is `runtime/acceptance` on NumPy arrays: the same decisions, up to the rounding of float64 sums.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from mtrun.kernels.native.library import Cycle, Decided, pointer

# (law, rule) -> its number in judge.h and the parameter that is its knob
_LAWS = {
    ("exact", None): (0, None),
    ("exact", "block"): (1, None),
    ("typical", None): (2, "threshold"),
    ("typical-pi", None): (3, "threshold"),
    ("cascade", "opt"): (4, "alpha"),
    ("cascade", "tokenv1"): (5, "alpha"),
    ("cascade", "tokenv2"): (6, "alpha"),
    ("cascade", "tokenv3"): (7, "alpha"),
}


@dataclass(frozen=True)
class LawCode:
    """A law as the library knows it."""

    number: int
    knob: float
    eps: float


def law_code(law: Any) -> LawCode | None:
    """The code of a `runtime.acceptance.law.AcceptanceLaw`; None for one that the library does not know."""
    found = _LAWS.get((law.name, law.rule))
    if found is None:
        return None
    number, knob = found
    return LawCode(number, 0.0 if knob is None else law.parameters[knob], law.parameters.get("eps", 1.0))


@dataclass(frozen=True)
class Decision:
    """A decided cycle of D drafts."""

    kept: int
    token: int
    deferred: list[bool]  # [D]
    divergence: list[float]  # [D]
    mass: list[float]  # [D] q at each drafted token


class NativeJudge:
    """Decides cycles. Belongs to one thread at a time."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.handle: int = library.mtrun_judge_new()
        self._free = weakref.finalize(self, library.mtrun_judge_free, self.handle)

    def decide(self, law: LawCode, target: Any, draft: Any, drafts: np.ndarray, uniforms: Any) -> Decision:
        """Judges drafts [D] int32 drawn from `draft`, D compact rows, against `target`, D + 1 compact rows.

        Both are `kernels.rows.Rows` of NumPy arrays, ids [R, K] int32 ascending and probs [R, K] float64; `draft` is
        None where D = 0. uniforms: (coins [D], residual, bonus).
        """
        depth, keep = drafts.size, [_contiguous(target.ids, np.int32), _contiguous(target.probs, np.float64)]
        keep += [] if draft is None else [_contiguous(draft.ids, np.int32), _contiguous(draft.probs, np.float64)]
        rows = (0, 0, 0) if draft is None else (pointer(keep[2]), pointer(keep[3]), keep[2].shape[1])
        coins, residual, bonus = uniforms
        keep += [_contiguous(drafts, np.int32), _contiguous(coins, np.float64)]
        deferred, numbers = np.empty(depth, dtype=np.bool_), np.empty((2, depth), dtype=np.float64)
        out = Decided(0, 0, pointer(deferred), pointer(numbers), pointer(numbers) + 8 * depth)
        cycle = Cycle(
            depth, pointer(keep[0]), pointer(keep[1]), keep[0].shape[1], *rows, pointer(keep[-2]), pointer(keep[-1]),
            residual, bonus, law.number, law.knob, law.eps,
        )  # fmt: skip
        self.library.mtrun_judge_decide(self.handle, ctypes.byref(cycle), ctypes.byref(out))
        divergence, mass = numbers.tolist()
        return Decision(out.kept, out.token, deferred.tolist(), divergence, mass)


def _contiguous(array: np.ndarray, dtype: Any) -> np.ndarray:
    return np.ascontiguousarray(array, dtype=dtype)
