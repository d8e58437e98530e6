"""The parts of a training step that are no matrix products, as MLX runs them anywhere or as NumPy runs them on a CPU.

MLX's CPU backend walks such operations on one core, an operation at a time: the softmax of a draft vocabulary took
longer than the two products around it. NumPy's vectorised exponential on blocks that stay in cache, some threads side
by side, leaves a step to its products. Both kinds give equal values and gradients up to rounding; `math_for` chooses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mtrun.runtime.forge.objective import draft_loss

_ROWS = 512  # of logits at a time: 16 MiB at 8,192 ids


class StepMath(Protocol):
    """What a training step needs besides products."""

    name: str

    def softmax(self, scores: mx.array, visible: mx.array) -> mx.array:
        """scores [B, n, S, K] float32, visible [B or 1, S, K] bool with a true in each row -> weights [B, n, S, K]."""
        ...

    def swiglu(self, gate: mx.array, up: mx.array) -> mx.array:
        """silu(gate) * up of two arrays of one shape."""
        ...

    def loss(self, share: float, rows: mx.array) -> Callable[[mx.array, mx.array, mx.array], mx.array]:
        """`objective.draft_loss` of states [N, H] under the lm_head rows [V', H]: (states, slots, target) -> [N]."""
        ...


class MlxMath:
    """Any device: MLX's own operations."""

    name = "mlx"

    def softmax(self, scores: mx.array, visible: mx.array) -> mx.array:
        hidden = mx.array(-mx.inf, dtype=scores.dtype)
        return mx.softmax(mx.where(visible[:, None], scores, hidden), axis=-1)

    def swiglu(self, gate: mx.array, up: mx.array) -> mx.array:
        return nn.silu(gate) * up

    def loss(self, share: float, rows: mx.array) -> Callable[[mx.array, mx.array, mx.array], mx.array]:
        of = draft_loss(share)
        return lambda states, slots, target: of(states @ rows.T, slots, target)


class HostMath:
    """CPU: NumPy on `threads` threads. Every call evaluates what it is given."""

    def __init__(self, threads: int) -> None:
        self.name = f"numpy, {threads} thread{'s' * (threads > 1)}"
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def softmax(self, scores: mx.array, visible: mx.array) -> mx.array:
        each = self._each
        hidden = ~np.array(visible)

        @mx.custom_function
        def softmax(scores: mx.array) -> mx.array:
            weights = np.array(scores)  # a copy, turned into weights where it stands

            def block(b: int) -> None:
                rows = weights[b]
                np.copyto(rows, -np.inf, where=hidden[b % len(hidden)])
                _softmax_inplace(rows)

            each(block, range(len(weights)))
            return mx.array(weights)

        @softmax.vjp
        def gradient(_: Any, cotangent: mx.array, output: mx.array) -> mx.array:
            weights, grad = _view(output), np.array(cotangent)

            def block(b: int) -> None:
                grad[b] -= np.einsum("nsk,nsk->ns", weights[b], grad[b])[..., None]
                grad[b] *= weights[b]

            each(block, range(len(grad)))
            return mx.array(grad)

        return cast(mx.array, softmax(scores))

    def swiglu(self, gate: mx.array, up: mx.array) -> mx.array:
        each = self._each

        @mx.custom_function
        def swiglu(gate: mx.array, up: mx.array) -> mx.array:
            a, b = _view(gate), _view(up)
            out = np.empty_like(a)

            def block(i: int) -> None:
                np.multiply(a[i] * _sigmoid(a[i]), b[i], out=out[i])

            each(block, range(len(a)))
            return mx.array(out)

        @swiglu.vjp
        def gradient(primals: Any, cotangent: mx.array, _: Any) -> tuple[mx.array, mx.array]:
            a, b, c = _view(primals[0]), _view(primals[1]), _view(cotangent)
            by_gate, by_up = np.empty_like(a), np.empty_like(a)

            def block(i: int) -> None:
                s = _sigmoid(a[i])
                silu = a[i] * s
                np.multiply(silu, c[i], out=by_up[i])
                np.multiply(c[i] * b[i], s + silu * (1 - s), out=by_gate[i])

            each(block, range(len(a)))
            return mx.array(by_gate), mx.array(by_up)

        return cast(mx.array, swiglu(gate, up))

    def loss(self, share: float, rows: mx.array) -> Callable[[mx.array, mx.array, mx.array], mx.array]:
        """The rows are frozen, so the gradient of the states is made block by block beside the loss: the logits of one
        block are all that is ever held, and the products of both directions run on what is still in cache."""
        each = self._each

        @mx.custom_function
        def loss(states: mx.array, slots: mx.array, target: mx.array) -> tuple[mx.array, mx.array]:
            losses, grads = [], []
            all_slots, all_targets = _view(slots), _view(target)
            for start in range(0, states.shape[0], _ROWS):
                logits = states[start : start + _ROWS] @ rows.T
                block = _view(logits)  # nobody else holds it: it becomes its own gradient
                found = np.empty(len(block), dtype=np.float32)

                def part(where: slice, block: Any = block, found: Any = found, start: int = start) -> None:
                    of = slice(start + where.start, start + where.stop)
                    found[where] = _loss_inplace(block[where], all_slots[of], all_targets[of], share)

                each(part, _parts(len(block), self._threads))
                losses.append(mx.array(found))
                grads.append(mx.array(block) @ rows)
                mx.eval(grads[-1])
            return mx.concatenate(losses), mx.concatenate(grads)

        @loss.vjp
        def gradient(primals: Any, cotangents: Any, outputs: Any) -> tuple[mx.array, ...]:
            return cotangents[0][:, None] * outputs[1], mx.zeros_like(primals[1]), mx.zeros_like(primals[2])

        def of(states: mx.array, slots: mx.array, target: mx.array) -> mx.array:
            outputs: Any = loss(states, slots, target)
            return outputs[0]

        return of

    def _each(self, work: Callable[[Any], None], items: Iterable[Any]) -> None:
        for _ in self._pool.map(work, items) if self._pool else map(work, items):
            pass


def math_for(threads: int) -> StepMath:
    """NumPy where MLX's default device is a CPU, MLX's own operations elsewhere."""
    return HostMath(threads) if mx.default_device() == mx.Device(mx.cpu) else MlxMath()


def _view(array: mx.array) -> np.ndarray:
    """The array's own memory, evaluated."""
    return np.array(array, copy=False)


def _parts(length: int, count: int) -> list[slice]:
    """0..length in `count` stretches of nearly equal length, empty ones left out."""
    ends = [length * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(ends) if b > a]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -80, 80)))  # past that float32 would overflow, and nothing is left to tell


def _softmax_inplace(rows: np.ndarray) -> None:
    """rows [..., K] become their softmax."""
    rows -= rows.max(axis=-1, keepdims=True)
    np.exp(rows, out=rows)
    rows /= rows.sum(axis=-1, keepdims=True)


def _loss_inplace(logits: np.ndarray, slots: np.ndarray, target: np.ndarray, share: float) -> np.ndarray:
    """The loss [N] of `objective.draft_loss`; logits [N, V'] become its gradient."""
    _softmax_inplace(logits)
    picked = np.take_along_axis(logits, slots, axis=-1)
    entropy = -(target * np.log(np.maximum(picked, 1e-20))).sum(axis=-1)
    rejected = 1 - np.minimum(target, picked).sum(axis=-1)
    wanted = (1 - share) * target + share * np.where(picked < target, picked, 0)
    logits *= wanted.sum(axis=-1, keepdims=True)
    np.subtract.at(logits, (np.arange(len(logits))[:, None], slots), wanted)  # unused slots repeat, with nothing
    return (1 - share) * entropy + share * rejected
