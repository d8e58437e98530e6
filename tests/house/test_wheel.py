"""The wheel holds what runs and nothing else, installs where no compiler is, and works far from its checkout."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.sources import FOLDERS, ROOT

if importlib.util.find_spec("scikit_build_core") is None or not (
    shutil.which("cmake") or importlib.util.find_spec("cmake")
):
    pytest.skip("building a wheel needs the dev extra", allow_module_level=True)

FORWARDER = "mtrun/kernels/blas/libblas_forward.so"
NATIVE = "mtrun/kernels/native/libmtrun_native.so"
PRIMITIVE = f"mtrun/kernels/native/mlx_primitive/_primitive{sysconfig.get_config_var('EXT_SUFFIX')}"
LINUX = sys.platform == "linux"
CAN_COMPILE_C = LINUX and any(map(shutil.which, ("cc", "gcc", "clang")))
CAN_COMPILE_CXX = LINUX and any(map(shutil.which, ("c++", "g++", "clang++")))
HAS_MLX_BUILD = all(importlib.util.find_spec(name) for name in ("nanobind", "mlx"))
# What the wheel's own interpreter is asked: where mtrun comes from, and what becomes of the lanes that need a library.
ASK = """
import json
import mtrun.runtime
from mtrun.lanes import cpu_blas, cpu_qmm
from mtrun.lanes.contract import Decision, PackEvidence
from mtrun.runtime.arming.evidence import gather
pack = PackEvidence("p", "llama", 64, 256, 2, None, Decision(True, "fits", "."), None, True)
seen = gather(threads=1, law="exact", depth=3, pack=pack)
told = {lane.name: [decision.ok, decision.code] for lane in (cpu_blas.LANE, cpu_qmm.LANE)
        for decision in [lane.supports(seen)]}
print(json.dumps({"home": mtrun.runtime.__file__, **told}))
"""
# A product in the native library alone, then the same inside MLX's graph.
MULTIPLY = """
import json
import numpy as np
from mtrun.kernels.native.engine import Activation, Entry, NativeEngine, StoredMatrix
from mtrun.kernels.native.library import instruction_set, open_library
entry = Entry(StoredMatrix(np.eye(40, 64, dtype=np.float32)))
x = np.arange(128, dtype=np.float32).reshape(2, 64)
names = [name for name in ("generic", "avx2", "avx512", "neon") if instruction_set(open_library(), name)]
rows = [NativeEngine(name, 1, Activation.WIDE, [entry]).multiply(0, x)[:, :40].tolist() for name in names]
import mlx.core as mx
from mtrun.kernels.native.mlx_primitive.matrices import PackedMatrices
rows.append(PackedMatrices("auto", 1, [entry]).matrices[0](mx.array(x)).tolist())
print(json.dumps([row == x[:, :40].tolist() for row in rows]))
"""


@dataclass(frozen=True)
class Wheel:
    path: Path
    source: Path  # the copy of the sources that it was built from

    @property
    def names(self) -> list[str]:
        with zipfile.ZipFile(self.path) as archive:
            return archive.namelist()


@dataclass(frozen=True)
class Installed:
    """A wheel in an environment of its own. Its dependencies are this environment's, behind it on the path."""

    folder: Path
    cwd: Path  # not writable, and empty

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder / "home")}
        program = [str(self.folder / "bin" / command[0]), *command[1:]]
        return subprocess.run(program, cwd=self.cwd, env=environment, capture_output=True, text=True, check=True)


def build(folder: Path, **changes: str) -> Wheel:
    """A wheel from a copy of the sources, so that nothing built earlier can slip in."""
    source = folder / "source"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip("wheel", str(source), "--no-build-isolation", "-w", str(folder / "dist"), **changes)
    (wheel,) = (folder / "dist").glob("*.whl")
    return Wheel(wheel, source)


def pip(*words: str, **changes: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words, "--no-deps", "--no-index"]
    done = subprocess.run(command, env={**os.environ, **changes}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def install(wheel: Wheel, folder: Path) -> Installed:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / python / "site-packages"
    pip("--python", str(folder / "bin" / "python"), "install", str(wheel.path))
    # A plain path: the editable install's own .pth file there is not read.
    (packages / "dependencies.pth").write_text("\n".join({sysconfig.get_path(kind) for kind in ("purelib", "platlib")}))
    cwd = folder / "cwd"
    cwd.mkdir(mode=0o555)
    return Installed(folder, cwd)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    """Built where no compiler works."""
    return build(tmp_path_factory.mktemp("pure"), CC="/bin/false", CXX="/bin/false")


@pytest.fixture(scope="module")
def c_only(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    """Built where the C++ compiler does not work."""
    return build(tmp_path_factory.mktemp("c_only"), CXX="/bin/false")


def test_the_wheel_holds_every_file_that_is_read_at_run_time(wheel: Wheel) -> None:
    inside = {name.removeprefix("mtrun/") for name in wheel.names}
    read = [path for name in FOLDERS for path in (wheel.source / name).rglob("*") if path.suffix in (".py", ".yaml")]
    read += (wheel.source / "runtime" / "packs" / "heads").rglob("*.safetensors")
    assert len(read) > 100
    assert {str(path.relative_to(wheel.source)) for path in read} - inside == set()


def test_the_wheel_holds_no_source_that_only_a_build_reads(wheel: Wheel) -> None:
    stray = (".c", ".cpp", ".h", ".inl", ".cmake", ".a", ".o", ".pyc", "CMakeLists.txt", ".md")
    assert [name for name in wheel.names if name.endswith(stray)] == []
    assert {name.split("/")[0] for name in wheel.names} == {"mtrun", wheel.path.name.rsplit("-", 3)[0] + ".dist-info"}


@pytest.mark.skipif(not (CAN_COMPILE_C and CAN_COMPILE_CXX), reason="needs Linux, a C and a C++ compiler")
def test_the_wheel_carries_the_libraries_where_compilers_are(wheel: Wheel) -> None:
    built = {name for name in wheel.names if name.endswith(".so")}
    assert built == {FORWARDER, NATIVE} | ({PRIMITIVE} if HAS_MLX_BUILD else set())
    assert "linux" in wheel.path.name


@pytest.mark.skipif(not (CAN_COMPILE_CXX and HAS_MLX_BUILD), reason="needs Linux, a C++ compiler, nanobind and mlx")
def test_the_wheels_native_library_multiplies_far_from_its_checkout(wheel: Wheel, tmp_path: Path) -> None:
    home = install(wheel, tmp_path / "env")
    right = json.loads(home.run("python", "-c", MULTIPLY).stdout)
    assert len(right) >= 2
    assert all(right)
    assert json.loads(home.run("python", "-c", ASK).stdout)["cpu_qmm"] == [True, "supported"]


@pytest.mark.skipif(not CAN_COMPILE_C, reason="needs Linux and a C compiler")
def test_without_a_cxx_compiler_the_forwarder_is_still_built(c_only: Wheel, tmp_path: Path) -> None:
    assert {name for name in c_only.names if name.endswith(".so")} == {FORWARDER}
    told = json.loads(install(c_only, tmp_path / "env").run("python", "-c", ASK).stdout)
    assert told["cpu_qmm"] == [False, "not_built"]
    assert told["cpu_blas"][1] != "not_built"


def test_commands_work_from_a_folder_that_cannot_be_written(wheel: Wheel, tmp_path: Path) -> None:
    home = install(wheel, tmp_path / "env")
    assert json.loads(home.run("python", "-c", ASK).stdout)["home"].startswith(str(home.folder))
    assert "law: exact" in home.run("mtrun", "--cfg", "job").stdout
    assert {line.split()[0] for line in home.run("mtrun", "profiles").stdout.splitlines()} >= {"turbo", "exact-stock"}
    assert list(home.cwd.iterdir()) == []


def test_without_a_compiler_the_wheel_is_pure_and_its_lanes_say_why(pure: Wheel, tmp_path: Path) -> None:
    assert pure.path.name.endswith("-py3-none-any.whl")
    assert [name for name in pure.names if name.endswith((".so", ".dylib"))] == []
    told = json.loads(install(pure, tmp_path / "env").run("python", "-c", ASK).stdout)
    assert told["cpu_blas"] == [False, "not_built" if LINUX else "platform"]
    assert told["cpu_qmm"][0] is False
    if LINUX:
        assert told["cpu_qmm"][1] == "not_built"
