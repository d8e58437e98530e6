"""Variants: several runs over one load of the weights, each with its own law, lanes and verdicts."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mtrun.runtime import compose
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.generator import MtpGenerator
from mtrun.runtime.preparation import prepare
from mtrun.runtime.requests import Chunk, GenerationRequest, Sampling
from mtrun.runtime.verdicts import State
from support.tiny_pack import write_tiny_pack

TURBO, CASCADE = ("profile=turbo",), ("profile=cascade-tokenv3", "cascade.alpha=0.5")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_pack(tmp_path_factory.mktemp("pack"), draft_vocab=64)


@pytest.fixture
def on_thread() -> Iterator[Callable[..., Any]]:
    """MLX arrays belong to a thread, and closing a generator ends its thread's streams."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda work, *given: pool.submit(work, *given).result()


def loaded(pack: Path, *overrides: str) -> MtpGenerator:
    generator = MtpGenerator(prepare(compose([f"pack={pack}", *overrides])))
    generator.load()
    return generator


def variant(base: MtpGenerator, pack: Path, *overrides: str) -> MtpGenerator:
    return base.variant(prepare(compose([f"pack={pack}", *overrides])))


def reply(generator: MtpGenerator) -> list[int]:
    request = GenerationRequest("test", (5, 9, 3), Sampling(seed=3), 24, ignore_eos=True)
    events = generator.run(request, lambda: False)
    return [token for event in events if isinstance(event, Chunk) for token in event.token_ids]


def engaged(generator: MtpGenerator) -> set[str]:
    """Lanes that served: by their own code, or by that of an engaged lane which does their work."""
    verdicts = generator.registry.verdicts()
    return {one.lane for one in verdicts if one.state is State.ENGAGED or one.served_by is not None}


def test_a_variant_says_what_a_generator_of_its_own_would_say(pack: Path, on_thread: Callable[..., Any]) -> None:
    def work() -> tuple[list[int], ...]:
        alone = [loaded(pack, *words) for words in (TURBO, CASCADE)]
        expected = [reply(generator) for generator in alone]
        base = alone[0]
        other = variant(base, pack, *CASCADE)
        assert other.decoder is not None
        assert base.decoder is not None
        assert other._loaded is base._loaded
        found = reply(other), reply(base), reply(other)
        for generator in (other, *alone[::-1]):
            generator.close()
        return (*expected, *found)

    exact, cascade, other, base, again = on_thread(work)
    assert other == again == cascade
    assert base == exact
    assert cascade != exact


def test_verdicts_of_one_variant_are_not_those_of_another(pack: Path, on_thread: Callable[..., Any]) -> None:
    def work() -> tuple[set[str], ...]:
        base = loaded(pack, *TURBO)
        cascade = variant(base, pack, *CASCADE)
        plain = variant(base, pack, "profile=turbo", "draft.depth=0")
        reply(base)
        before = engaged(base), engaged(cascade)
        reply(cascade)
        reply(plain)
        after = engaged(cascade), engaged(plain)
        for generator in (plain, cascade, base):
            generator.close()
        return (*before, *after)

    own = {"frspec", "draft_prescatter", "block_verify", "batched_target_rows"}
    base, idle, cascade, plain = (found & own for found in on_thread(work))
    assert base == own
    assert idle == set()
    assert cascade == own - {"block_verify"}
    assert not plain & {"frspec", "draft_prescatter", "block_verify"}


def test_a_variant_that_needs_another_process_is_refused(
    pack: Path, tmp_path: Path, on_thread: Callable[..., Any]
) -> None:
    """MLX is imported already, so the base runs without `cpu_blas`, and a variant can only do the same."""
    import mlx.core  # noqa: F401

    def work() -> list[str]:
        base = loaded(pack, *TURBO, "lanes.cpu_blas=false")
        other = write_tiny_pack(tmp_path / "other", seed=1)
        cases = ((other, ()), (pack, ("engine.threads=2",)), (pack, ("lanes.cpu_blas=true",)))
        said = []
        for folder, words in cases:
            with pytest.raises(ConfigurationError) as caught:
                variant(base, folder, *TURBO, *words)
            said.append(str(caught.value))
        assert reply(base)
        base.close()
        return said

    packs, threads, lane = on_thread(work)
    assert "same pack" in packs
    assert "engine.threads" in threads
    assert "lanes.cpu_blas=false" in lane
