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

LIBRARY = "mtrun/kernels/blas/libblas_forward.so"
LINUX = sys.platform == "linux"
CAN_COMPILE = LINUX and any(map(shutil.which, ("cc", "gcc", "clang")))
# What the wheel's own interpreter is asked: where mtrun comes from, and what becomes of the lane that needs a library.
ASK = """
import json
import mtrun.runtime
from mtrun.lanes.contract import Decision, PackEvidence
from mtrun.lanes.cpu_blas import LANE
from mtrun.runtime.arming.evidence import gather
pack = PackEvidence("p", "llama", 64, 256, 2, None, Decision(True, "fits", "."), None, True)
decision = LANE.supports(gather(threads=1, law="exact", depth=3, pack=pack))
print(json.dumps({"home": mtrun.runtime.__file__, "ok": decision.ok, "code": decision.code}))
"""


@dataclass(frozen=True)
class Wheel:
    path: Path

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
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip("wheel", str(source), "--no-build-isolation", "-w", str(folder / "dist"), **changes)
    (wheel,) = (folder / "dist").glob("*.whl")
    return Wheel(wheel)


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
    """Built where the C compiler does not work."""
    return build(tmp_path_factory.mktemp("pure"), CC="/bin/false")


def test_the_wheel_holds_every_file_that_is_read_at_run_time(wheel: Wheel) -> None:
    inside = {name.removeprefix("mtrun/") for name in wheel.names}
    read = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".yaml")]
    read += (ROOT / "runtime" / "packs" / "heads").rglob("*.safetensors")
    assert {str(path.relative_to(ROOT)) for path in read} - inside == set()


def test_the_wheel_holds_no_source_that_only_a_build_reads(wheel: Wheel) -> None:
    stray = (".c", ".h", ".o", ".pyc", "CMakeLists.txt", ".md")
    assert [name for name in wheel.names if name.endswith(stray)] == []
    assert {name.split("/")[0] for name in wheel.names} == {"mtrun", wheel.path.name.rsplit("-", 3)[0] + ".dist-info"}


@pytest.mark.skipif(not CAN_COMPILE, reason="needs Linux and a C compiler")
def test_the_wheel_carries_the_forwarder_where_a_compiler_is(wheel: Wheel) -> None:
    assert LIBRARY in wheel.names
    assert "linux" in wheel.path.name


def test_commands_work_from_a_folder_that_cannot_be_written(wheel: Wheel, tmp_path: Path) -> None:
    home = install(wheel, tmp_path / "env")
    assert json.loads(home.run("python", "-c", ASK).stdout)["home"].startswith(str(home.folder))
    assert "law: exact" in home.run("mtrun", "--cfg", "job").stdout
    assert {line.split()[0] for line in home.run("mtrun", "profiles").stdout.splitlines()} >= {"turbo", "exact-stock"}
    assert list(home.cwd.iterdir()) == []


def test_without_a_compiler_the_wheel_is_pure_and_its_lane_says_why(pure: Wheel, tmp_path: Path) -> None:
    assert pure.path.name.endswith("-py3-none-any.whl")
    assert LIBRARY not in pure.names
    told = json.loads(install(pure, tmp_path / "env").run("python", "-c", ASK).stdout)
    assert (told["ok"], told["code"]) == (False, "not_built" if LINUX else "platform")
