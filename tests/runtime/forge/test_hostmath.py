"""NumPy's step math gives the values and gradients of MLX's own operations."""

import mlx.core as mx
import numpy as np
import pytest

from mtrun.runtime.forge.hostmath import HostMath, MlxMath, StepMath, math_for

HOSTS = [HostMath(1), HostMath(2), HostMath(3)]


def normal(seed: int, *shape: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32))


def same(mine: mx.array, theirs: mx.array) -> bool:
    return bool(np.allclose(np.array(mine), np.array(theirs), atol=2e-6, rtol=2e-5))


@pytest.mark.parametrize("host", HOSTS, ids=lambda math: math.name)
@pytest.mark.parametrize("batch", [1, 3])
def test_softmax_over_what_is_visible(host: StepMath, batch: int) -> None:
    scores, weight = normal(0, 3, 2, 5, 7), normal(1, 3, 2, 5, 7)
    visible = np.random.default_rng(2).random((batch, 5, 7)) < 0.5
    visible[..., 3] = True

    def of(math: StepMath):
        return mx.value_and_grad(lambda x: (math.softmax(x * 1.5, mx.array(visible)) * weight).sum())(scores)

    (mine, grad), (theirs, expected) = of(host), of(MlxMath())
    assert same(mine, theirs)
    assert same(grad, expected)
    assert not np.array(host.softmax(scores, mx.array(visible)))[~np.broadcast_to(visible[:, None], scores.shape)].any()


@pytest.mark.parametrize("host", HOSTS, ids=lambda math: math.name)
def test_swiglu(host: StepMath) -> None:
    gate, up, weight = normal(0, 3, 4, 6) * 20, normal(1, 3, 4, 6), normal(2, 3, 4, 6)
    gate[0, 0, 0], gate[0, 0, 1] = 300.0, -300.0

    def of(math: StepMath):
        run = mx.value_and_grad(lambda a, b: (math.swiglu(a, b) * weight).sum(), argnums=(0, 1))
        return run(gate, up)

    (mine, grads), (theirs, expected) = of(host), of(MlxMath())
    assert same(mine, theirs)
    assert all(same(a, b) for a, b in zip(grads, expected, strict=True))


@pytest.mark.parametrize("host", HOSTS, ids=lambda math: math.name)
@pytest.mark.parametrize("count", [2, 700])
@pytest.mark.parametrize("share", [0.0, 0.8, 1.0])
def test_loss_of_states_under_frozen_rows(host: StepMath, count: int, share: float) -> None:
    """700 rows take more than one block; padded slots repeat and weigh nothing."""
    rng = np.random.default_rng(0)
    states, rows, scale = normal(1, count, 8), normal(2, 12, 8), normal(3, count)
    slots = np.stack([rng.permutation(12)[:4] for _ in range(count)]).astype(np.int32)
    target = rng.dirichlet(np.ones(4), count).astype(np.float32) * 0.9
    slots[::2, 3], target[::2, 3] = slots[::2, 0], 0.0

    def of(math: StepMath):
        loss = math.loss(share, rows)
        return mx.value_and_grad(lambda x: (scale * loss(x * 0.7, mx.array(slots), mx.array(target))).sum())(states)

    (mine, grad), (theirs, expected) = of(host), of(MlxMath())
    assert np.allclose(mine.item(), theirs.item(), rtol=1e-4, atol=1e-4)
    assert np.allclose(np.array(grad), np.array(expected), atol=2e-5)


def test_the_host_is_used_where_mlx_runs_on_a_cpu_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert math_for(2).name == "numpy, 2 threads"
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    assert math_for(2).name == "mlx"
