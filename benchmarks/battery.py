"""The battery: every run behind the published report, one command after another, then the report itself.

    python -m benchmarks.battery [--part speed|quality|report|all] [--out FOLDER] [--busy-ok]

Each run is an `mtrun` command that anyone can type; it is printed before it starts. A run that is complete is not made
again, one that was stopped goes on. Runs lie in FOLDER/runs, the report beside them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtrun.runtime.bench.cells import standard_cells
from mtrun.runtime.bench.plan import Cell
from mtrun.runtime.measure.code import root

OUT = Path("outputs") / "battery"  # of the checkout; relative, so that receipts name no folder of one machine
PARTS = ("speed", "quality", "report")
DEPTH = 3
THREADS = "engine.threads=1"  # pinned: how many threads pay is probed at each start, and may come out differently
ALPHAS = "0.1,0.3,0.5,0.7,0.9"
SWEPT = f"acceptance=cascade cascade.rule=opt,tokenv3 cascade.alpha={ALPHAS} profile=turbo draft.depth={DEPTH}"


@dataclass(frozen=True)
class Step:
    """One run: its folder's name and the words of its command, without --out."""

    name: str
    part: str
    words: tuple[str, ...]


def steps() -> Iterator[Step]:
    """Every run of the battery, in order."""
    yield from _speed()
    for cell in standard_cells(DEPTH):
        yield _answers("nano", cell, "nano", 3)
    for cell in standard_cells(DEPTH):
        yield _answers("smollm2", cell, "facts", 1)


def _answers(pack: str, cell: Cell, tasks: str, seeds: int) -> Step:
    asked = ("--set", tasks, "--seeds", str(seeds), "--cell", cell.name)
    name = f"{pack}-{'facts' if tasks == 'facts' else 'tasks'}/{cell.name}"
    return Step(name, "quality", ("eval", "tasks", f"pack={pack}", THREADS, *cell.overrides, *asked))


def _speed() -> Iterator[Step]:
    def bench(name: str, words: str, *quoted: str) -> Step:
        return Step(name, "speed", ("bench", *words.split(), *quoted))

    tasks = "--prompts benchmarks/nano.txt"  # nano knows its tasks and nothing else
    yield bench(
        "nano", f"pack=nano {THREADS} --cells standard --depth {DEPTH} --seeds 8 --per-seed 3 --tokens 32 {tasks}"
    )
    yield bench("smollm2", f"pack=smollm2 {THREADS} --cells standard --depth {DEPTH} --seeds 8 --tokens 64")
    yield bench(
        "smollm2-abab",
        f"pack=smollm2 {THREADS} --protocol abab --a exact --b tokenv3-0.95 --seeds 8 --rounds 2 --tokens 64",
    )
    yield bench(
        "smollm2-alpha",
        f"-m pack=smollm2 {THREADS} {SWEPT} --cells plain,exact,typical-0.2 --depth {DEPTH} --seeds 6 --tokens 64 "
        "--no-split",
    )
    # Shadows cost time in the windows they watch, so they have a run of their own.
    yield bench(
        "smollm2-shadow",
        f"pack=smollm2 {THREADS} --cells exact --depth {DEPTH} --seeds 6 --tokens 64 --no-nll --no-split",
        "--shadow",
        SWEPT,
    )
    yield bench(
        "smollm2-ladder",
        f"pack=smollm2 {THREADS} --protocol ladder --contexts 512,1k,2k,4k --cells plain,exact --depth {DEPTH} "
        "--seeds 2 --tokens 32 --no-nll --no-split",
    )
    yield bench("micro", "--protocol micro")


def run(step: Step, folder: Path, busy_ok: bool) -> int:
    """Runs or completes a step; its exit code."""
    words = [*step.words, "--out", str(folder), "--resume"]
    words += ["--busy-ok"] if busy_ok and step.part == "speed" else []
    print("mtrun " + " ".join(f'"{word}"' if " " in word else word for word in words), flush=True)
    began = time.monotonic()
    code = subprocess.run([sys.executable, "-m", "mtrun.runtime.cli.main", *words], cwd=root(), check=False).returncode
    print(f"{step.name}: exit {code} after {time.monotonic() - began:.0f} s", flush=True)
    return code


def report(out: Path) -> int:
    """The report over every run that is there."""
    runs = [str(path.parent.relative_to(root())) for path in sorted((root() / out / "runs").rglob("run.json"))]
    words = ["report", *runs, "--out", str(out / "report"), "--title", "Acceptance laws: speed and quality"]
    return subprocess.run([sys.executable, "-m", "mtrun.runtime.cli.main", *words], cwd=root(), check=False).returncode


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.battery", description="Every run of the report.")
    parser.add_argument(
        "--part", choices=[*PARTS, "all"], default="all", help="speed needs a quiet machine; report measures nothing"
    )
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER")
    parser.add_argument("--busy-ok", action="store_true", help="measure speed on a busy machine")
    given = parser.parse_args(words)
    failed = []
    for step in steps():
        if given.part in ("all", step.part) and run(step, given.out / "runs" / step.name, given.busy_ok):
            failed.append(step.name)
    code = report(given.out)
    if failed:
        print(f"benchmarks.battery: look at {', '.join(failed)}", file=sys.stderr)
    return 1 if failed or code else 0


if __name__ == "__main__":
    sys.exit(main())
