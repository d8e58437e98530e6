"""Every shipped Metal source: it builds, it is clean, and MLX declares its buffers as the emulator does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mtrun.kernels.metal import attention, block_verify, judge, norms, rows
from mtrun.kernels.metal.source import MetalKernel, MetalSource, build
from mtrun.kernels.rows import RowFilter
from support.metal_emulator.emulator import PLACE, Emulator
from support.metal_emulator.lint import lint
from support.sources import ROOT

SOURCES = {
    source.name: source
    for source in (
        rows.SOURCE,
        judge.SOURCE,
        block_verify.SOURCE,
        attention.SPLIT,
        attention.COMBINE,
        norms.ADD_NORM,
        norms.NORM_ROPE,
    )
}
FILES = sorted((ROOT / "kernels" / "metal").glob("*.metal"))
LINES = 200
POINTER = re.compile(r"\b(?:threadgroup|device) (\w+)\*")
Kernels = Callable[[MetalSource], MetalKernel]


def floats(*shape: int) -> mx.array:
    return mx.full(shape, 0.25)


SLOTS = mx.zeros((2,), dtype=mx.int32)
ROTARY = norms.Rotary.of_base(1e4, 16)
# One call of every module, from arrays alone, so that MLX can trace it.
CALLS: dict[str, tuple[Callable[..., Any], tuple[mx.array, ...]]] = {
    "rows": (
        lambda on, x: rows.metal_rows(x, RowFilter(0.8, 0.9, 5), kernel=on(rows.SOURCE)).peak,
        (floats(2, 100),),
    ),
    "judge": (
        lambda on, *block: judge.metal_judge(*block, law="opt", knob=0.2, kernel=on(judge.SOURCE)).replacement,
        (floats(2, 4), floats(2, 4), SLOTS, floats(2)),
    ),
    "block_verify": (
        lambda on, *block: block_verify.metal_block_verify(*block, kernel=on(block_verify.SOURCE)),
        (floats(2, 4), floats(2, 4), SLOTS, floats(2)),
    ),
    "attention": (
        lambda on, *qkv: attention.metal_attention(
            *qkv, scale=0.1, length=7, kernels=(on(attention.SPLIT), on(attention.COMBINE))
        ),
        (floats(1, 4, 2, 32), floats(1, 2, 9, 32), floats(1, 2, 9, 32)),
    ),
    "add_norm": (
        lambda on, *given: norms.metal_add_norm(*given, 1e-5, kernel=on(norms.ADD_NORM)),
        (floats(2, 20), floats(2, 20), floats(20)),
    ),
    "norm_rope": (
        lambda on, *qk: norms.metal_norm_rope(*qk, 3, ROTARY, kernel=on(norms.NORM_ROPE)),
        (floats(2, 3, 16), floats(2, 1, 16)),
    ),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_source_builds_without_metal_and_is_clean(source: MetalSource) -> None:
    assert build(source) is build(source)
    assert lint(source.body, source.header) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_metal_file_is_short_and_used(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES
    assert max(map(len, text.splitlines())) <= 120
    assert any(text in source.body + source.header for source in SOURCES.values())


def parameters(generated: str) -> list[list[str]]:
    """The parameters of each kernel that MLX printed, without buffer indices, shapes and strides."""
    lists = re.findall(r"\[\[kernel\]\] void \w+\(\n(.*?)\) \{\n", generated, re.DOTALL)
    found = [re.findall(r"^ *(.+?) \[\[(\w+)", text, re.MULTILINE) for text in lists]
    return [[name for name, kind in pairs if kind == "buffer" and not _derived(name)] for pairs in found]


def _derived(name: str) -> bool:
    return name.endswith(("_shape", "_strides"))


@pytest.mark.skipif(mx.metal.is_available(), reason="where Metal is, the kernels themselves run")
@pytest.mark.parametrize("name", CALLS)
def test_mlx_declares_the_buffers_that_the_emulator_declares(
    name: str, emulator: Emulator, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Tracing for export needs no Metal: MLX checks the call and prints the function that it would compile."""
    call, arrays = CALLS[name]

    def printing(source: MetalSource) -> MetalKernel:
        kernel: Any = build(source)
        return lambda **options: kernel(**options, verbose=True)

    mx.export_function(str(tmp_path / "kernel"), lambda *given: call(printing, *given), *arrays)
    generated = capfd.readouterr().out
    emulated: list[Any] = []

    def watched(source: MetalSource) -> MetalKernel:
        emulated.append(emulator.kernel(source))
        return emulated[-1]

    mx.eval(call(watched, *arrays))
    assert parameters(generated) == [kernel.signatures[0] for kernel in emulated]
    attributes = set(re.findall(r"^ *(\w+) (\w+) \[\[(?!buffer)", generated, re.MULTILINE))
    assert attributes <= set(PLACE)


BAD = {
    "a bare pointer": ("float* row = x + 1;", "", "row has no address space"),
    "a bare pointer of a template type": ("const T *row = x;", "", "row has no address space"),
    "a bare reference": ("", "inline void f(float& out) { out = 1; }", "out has no address space"),
    "a bare parameter": ("", "inline float f(const float* scratch, uint n) { return scratch[n]; }", "scratch has no"),
    "one of two": ("", "inline float f(device float* a, uint *b) { return a[b[0]]; }", "b has no address space"),
    "a shared array in a helper": ("", "inline void f() { threadgroup float part[32]; }", "outside the kernel"),
    "a shared initial value": ("threadgroup float part[2] = {0, 0};", "", "cannot be initialised"),
    "a shared scalar with a value": ("threadgroup uint n = 0;", "", "cannot be initialised"),
    "plain C++": ("float x = std::exp(1.0f);", "", "std:: is not Metal"),
    "double": ("double x = 0;", "", "double is not Metal"),
    "a closure": ("auto f = [&](float x) { return x; };", "", "is not Metal"),
}
GOOD = (
    "const device float* row = x + 1;",
    "threadgroup float* part = scratch;",
    "threadgroup float part[32];\nuint n = 3 * k;\nfloat y = float(a) * b;\nout[i] = float(x) *scale;",
    "device const T* row = x;  // float* in a comment",
    "/* float* row = x; */ thread float& out = y;",
)


@pytest.mark.parametrize("name", BAD)
def test_the_lint_finds_a_seeded_fault(name: str) -> None:
    body, header, words = BAD[name]
    found = lint(body, header)
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize("text", GOOD)
def test_the_lint_passes_what_is_metal(text: str) -> None:
    assert lint(text) == []


@pytest.mark.parametrize(
    "name", [name for name, source in SOURCES.items() if POINTER.search(source.header + source.body)]
)
def test_the_lint_finds_a_qualifier_taken_from_a_shipped_source(name: str) -> None:
    source = SOURCES[name]
    body, header = (POINTER.sub(r"\1*", text) for text in (source.body, source.header))
    assert lint(body, header)
