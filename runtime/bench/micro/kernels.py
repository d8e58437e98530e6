"""Time of matrix products and of forwards of the embedded pack's trunk, by rows verified together.

A product is [rows, 576] by the transpose of a [1536, 576] matrix, the default pack's widths. Each forward reads its
tokens after 128 cached ones and gives a row of logits for each; the cache is trimmed back within the measured call,
which costs next to nothing. Native code has one thread, NumPy and MLX use the threads that they choose.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from mtrun.runtime.bench.micro.case import Case, Timed, hold, native

OUTPUTS, INPUTS = 1536, 576
GROUP, BITS = 64, 8  # of the quantised matrix: a scale and a bias for every GROUP weights
CACHED = 128
WIDTHS = (1, 2, 4, 8)
# Between sums of INPUTS products in another order, and activations of 14 bits, relative to the largest result.
TOLERANCE = 2e-3


def cases() -> tuple[Case, ...]:
    """Products of a dense and a quantised matrix, and forwards, by width; each way that has one."""
    found = []
    for rows in WIDTHS:
        dense = f"product float32 [{rows}, {INPUTS}] [{OUTPUTS}, {INPUTS}]"
        found += [Case(dense, "numpy", partial(_numpy_product, rows)), Case(dense, "mlx", partial(_mlx_product, rows))]
        found.append(Case(dense, "native", partial(_native_product, rows, False)))
        stored = f"product {BITS} bits [{rows}, {INPUTS}] [{OUTPUTS}, {INPUTS}]"
        found.append(Case(stored, "mlx", partial(_mlx_quantised, rows)))
        found.append(Case(stored, "native", partial(_native_product, rows, True)))
    for rows in WIDTHS:
        forward = f"forward nano, {rows} after {CACHED}"
        found += [
            Case(forward, "mlx", partial(_mlx_forward, rows)),
            Case(forward, "native", partial(_native_forward, rows)),
        ]
    return tuple(sorted(found, key=lambda case: case.group))


@cache
def _matrix() -> Any:
    """[OUTPUTS, INPUTS] float32."""
    import numpy as np

    return np.random.default_rng(1).normal(0.0, 0.05, (OUTPUTS, INPUTS)).astype(np.float32)


def _activations(rows: int) -> Any:
    """[rows, INPUTS] float32."""
    import numpy as np

    return np.random.default_rng(rows).normal(0.0, 1.0, (rows, INPUTS)).astype(np.float32)


@cache
def _quantised() -> Any:
    """The matrix as MLX quantises it: weight, scales, biases."""
    import mlx.core as mx

    parts = mx.quantize(mx.array(_matrix()), group_size=GROUP, bits=BITS)
    mx.eval(*parts)
    return parts


def _check(matrix: Any, rows: int, found: Any) -> None:
    """A product [rows, OUTPUTS] is that of float64 sums."""
    import numpy as np

    wanted = _activations(rows).astype(np.float64) @ np.asarray(matrix, dtype=np.float64).T
    hold(found.shape == wanted.shape, f"the product is {found.shape}, not {wanted.shape}")
    off = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    hold(off <= TOLERANCE, f"the product is off by {off:.2g} of its largest value")


def _numpy_product(rows: int) -> Timed:
    x, weight = _activations(rows), _matrix()
    return Timed(lambda: x @ weight.T, partial(_check, weight, rows))


def _mlx_product(rows: int) -> Timed:
    import mlx.core as mx
    import numpy as np

    x, weight = mx.array(_activations(rows)), mx.array(_matrix())
    mx.eval(x, weight)

    def product() -> Any:
        found = x @ weight.T
        mx.eval(found)
        return found

    return Timed(product, lambda found: _check(_matrix(), rows, np.array(found)))


def _mlx_quantised(rows: int) -> Timed:
    import mlx.core as mx
    import numpy as np

    x, (weight, scales, biases) = mx.array(_activations(rows)), _quantised()
    mx.eval(x)

    def product() -> Any:
        found = mx.quantized_matmul(x, weight, scales, biases, transpose=True, group_size=GROUP, bits=BITS)
        mx.eval(found)
        return found

    return Timed(product, lambda found: _check(_dequantised(), rows, np.array(found)))


def _dequantised() -> Any:
    import mlx.core as mx
    import numpy as np

    return np.array(mx.dequantize(*_quantised(), group_size=GROUP, bits=BITS))


def _native_product(rows: int, quantised: bool) -> Timed:
    isa = native()
    import numpy as np

    from mtrun.kernels.native.engine import Activation, Entry, NativeEngine, StoredMatrix

    if quantised:
        weight, scales, biases = (np.array(part) for part in _quantised())
        stored, matrix = StoredMatrix(weight, scales, biases, BITS, GROUP), _dequantised()
    else:
        stored, matrix = StoredMatrix(_matrix()), _matrix()
    x, engine = _activations(rows), NativeEngine(isa, 1, Activation.WIDE, [Entry(stored)])
    return Timed(lambda: engine.multiply(0, x), lambda found: _check(matrix, rows, found[:, :OUTPUTS]), {"isa": isa})


@cache
def _nano() -> Any:
    """nano's trunk on MLX."""
    from mtrun.runtime.packs import llama
    from mtrun.runtime.packs.embedded import embedded_packs
    from mtrun.runtime.packs.reader import describe

    return llama.load(describe(embedded_packs()["nano"])).trunk


@cache
def _nano_native(isa: str) -> Any:
    """nano's trunk as the lane `cpu_layer` builds it, from the weights as stored, on one thread."""
    from mtrun.kernels.native.convert import rope_table, sizes_of, trunk_weights
    from mtrun.kernels.native.llama import Choices, build

    made = _nano()
    sizes = sizes_of(made.args)
    turn = made.model.model.layers[0].self_attn.rope
    rope = rope_table(turn, sizes.head_dim, sizes.rope_traditional, made.context_limit)
    return build(sizes, rope, trunk_weights(made.stored(), made.args), None, Choices(isa, 1)).trunk


def _ids(vocab: int, rows: int) -> Any:
    """[1, CACHED + rows] int32."""
    import numpy as np

    return np.random.default_rng(0).integers(0, vocab, (1, CACHED + rows)).astype(np.int32)


def _check_logits(rows: int, vocab: int, found: Any) -> None:
    import numpy as np

    hold(found.shape == (rows, vocab), f"it gives logits of {found.shape}, not {(rows, vocab)}")
    hold(bool(np.isfinite(found).all()), "its logits are not finite")


def _native_forward(rows: int) -> Timed:
    isa = native()
    trunk = _nano_native(isa)
    ids, caches = _ids(trunk.vocab_size, rows), trunk.new_caches()
    trunk.forward(ids[:, :CACHED], caches, "none")

    def forward() -> Any:
        found = trunk.forward(ids[:, CACHED:], caches, "all").logits
        caches[0].trim(rows)
        return found

    return Timed(forward, partial(_check_logits, rows, trunk.vocab_size), {"isa": isa})


def _mlx_forward(rows: int) -> Timed:
    import mlx.core as mx
    import numpy as np

    trunk = _nano()
    ids, caches = mx.array(_ids(trunk.vocab_size, rows)), trunk.new_caches()
    mx.eval(trunk.forward(ids[:, :CACHED], caches, "last").logits)

    def forward() -> Any:
        found = trunk.forward(ids[:, CACHED:], caches, "all").logits
        mx.eval(found)
        for one in caches:
            one.trim(rows)
        return found

    return Timed(forward, lambda found: _check_logits(rows, trunk.vocab_size, np.array(found)))
