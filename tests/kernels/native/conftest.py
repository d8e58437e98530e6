"""What these tests run on: the installed library, or another build of it given by `--native-library`.

A build with sanitizers needs their runtime in the process, so give the test run that, too:
`LD_PRELOAD=$(gcc -print-file-name=libasan.so) pytest tests/kernels/native --native-library PATH`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from mtrun.kernels.native import library as native_library

NAMES = ("generic", "avx2", "avx512", "avx512_vnni", "neon")
MISSING = "the native library is not built: reinstall where a C++ compiler is present"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--native-library", metavar="PATH", help="the native library to test instead of the installed one")


def _path(config: pytest.Config) -> str | None:
    return config.getoption("native_library", None) or native_library.library_path()


def _runs_here(config: pytest.Config) -> list[str]:
    path = _path(config)
    if path is None:
        return []
    library = native_library.open_library(path)
    return [name for name in NAMES if native_library.instruction_set(library, name) == name]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`isa` is each instruction set that this processor runs."""
    if "isa" in metafunc.fixturenames:
        names = _runs_here(metafunc.config)
        metafunc.parametrize("isa", names or [pytest.param("", marks=pytest.mark.skip(reason=MISSING))])


@pytest.fixture(scope="session", autouse=True)
def library(pytestconfig: pytest.Config) -> Iterator[ctypes.CDLL]:
    """The library under test, which is also the one that the product opens."""
    path = _path(pytestconfig)
    if path is None:
        pytest.skip(MISSING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_library, "library_path", lambda: path)
        yield native_library.open_library(path)


@pytest.fixture(scope="session")
def isas(pytestconfig: pytest.Config) -> list[str]:
    """Every instruction set that this processor runs; the first is the reference."""
    return _runs_here(pytestconfig)
