"""Reports written once: one over runs that lack a window, a whole cell, and a context; a small one to be spoiled."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mtrun.runtime.report.manifest import make
from support.measured_runs import change, write_bench, write_tasks, write_text

CELLS = ("plain", "exact", "tokenv3-0.95", "opt-0", "opt-0.25")
CAP = "not measured: 2048 tokens of prompt are estimated at 900 MiB of memory, and the cap is 800 MiB"


def spoil(window: Path, **said: str) -> None:
    """Turns a window into one without figures, as a death or a refusal leaves it."""
    change(window, **dict.fromkeys(("ids", "digest", "counts", "decode_seconds", "memory", "nll")), **said)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs/ and report/, much of it missing."""
    root = tmp_path_factory.mktemp("reported")
    runs = root / "runs"
    sweep = write_bench(runs / "sweep", cells=CELLS, shadow=True)
    (sweep / "windows/opt-0.25.s1.p2.r0.json").unlink()
    for path in (sweep / "windows").glob("opt-0.s*"):
        path.unlink()
    spoil(sweep / "windows/exact.s0.p1.r0.json", error="RuntimeError: it broke")
    spoil(sweep / "windows/plain.s3.p1.r0.json", refused="the verdict of cpu_layer changed")
    ladder = write_bench(runs / "ladder", "ladder", CELLS[:2], seeds=(0, 1), contexts=(1024, 2048))
    for path in (ladder / "windows").glob("exact.*.c2048.json"):
        spoil(path, refused=CAP)
    abab = write_bench(runs / "abab", "abab", CELLS[1:3], rounds=2, seeds=range(6))
    evals = [write_tasks(runs / f"tasks-{cell}", cell, pack="smollm2") for cell in CELLS[:3]]
    evals += [write_text(runs / f"text-{cell}", cell) for cell in CELLS[:2]]
    make([sweep, ladder, abab, *evals], root / "report", "Synthetic")
    return root


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs/ and report/, nothing missing."""
    root = tmp_path_factory.mktemp("whole")
    sweep = write_bench(root / "runs/sweep", cells=("plain", "opt-0.25"), seeds=(0, 1))
    abab = write_bench(root / "runs/abab", "abab", CELLS[1:3], rounds=2, seeds=(0, 1))
    make([sweep, abab], root / "report", "Whole")
    return root


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """The same to be spoiled; paths in the manifest are relative, so the copy stands by itself."""
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The folder of one small sweep."""
    return write_bench(tmp_path / "run", cells=("plain", "opt-0.25", "opt-0.5"), seeds=(0, 1))
