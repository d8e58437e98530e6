"""How many ids a head should draft over: coverage and overlap on held-out text, speed of the exact law, by size.

    python -m benchmarks.draft_vocab --pack smollm2 --run RUN --features SHARDS --held SHARDS --out outputs/draft-vocab

RUN is a folder of `mtrun forge train`. A head predicts a state, so one run serves every size. Each size becomes a pack;
its speed is the paired ratio of exact to plain decoding within one `mtrun bench` of that pack.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtrun.runtime.measure.code import code_identity, root
from mtrun.runtime.measure.machine import session
from mtrun.runtime.measure.stats import Interval, interval_text
from mtrun.runtime.measure.store import read_json, write_json, write_text

SIZES = (2048, 4096, 8192, 16384)
SCHEMA = "mtrun.draft-vocab/1"


def mtrun(*words: str) -> str:
    """Standard output of a command. Raises CalledProcessError."""
    command = [sys.executable, "-m", "mtrun.runtime.cli.main", *words]
    return subprocess.run(command, cwd=root(), check=True, text=True, stdout=subprocess.PIPE).stdout


def measure(given: argparse.Namespace, size: int) -> dict[str, Any]:
    """The figures of one size."""
    pack, runs = given.out / f"pack-{size}", given.out / f"bench-{size}"
    ranked = ("--draft-vocab", str(size), "--features", str(given.features))
    mtrun("forge", "build", given.pack, "--run", str(given.run), "--out", str(pack), "--attach", "--replace", *ranked)
    found = json.loads(mtrun("forge", "eval", str(pack), "--features", str(given.held), "--json"))
    busy = ("--busy-ok",) if given.busy_ok else ()
    speed = ("--cells", "plain,exact", "--seeds", str(given.seeds), "--tokens", "64", "--no-nll")
    mtrun("bench", f"pack={pack}", *speed, "--out", str(runs), "--resume", *busy)
    rows = {row["cell"]: row for row in read_json(runs / "summary.json")["cells"]}
    exact = rows["exact"]
    return {
        "size": size,
        "coverage": found["coverage"],
        "overlap": found["overlap"],
        "tokens_per_cycle": exact["tokens_per_cycle"],
        "ms_per_cycle": exact["ms_per_cycle"],
        "to_plain": exact["to_plain"],
        "draft_ms": (exact["split_ms"] or {}).get("draft"),
        "head_bytes": (pack / "mtp.safetensors").stat().st_size,
    }


def table(receipt: dict[str, Any]) -> str:
    """The receipt as Markdown."""
    lines = [
        f"# Draft vocabulary of {receipt['pack']}",
        "",
        "| ids | coverage of the trunk's mass | overlap at depth 1, 2, 3 | tokens/cycle [95 %] | draft ms/cycle | "
        "ms/cycle | exact to plain [95 %] | head MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in receipt["sizes"]:
        overlap = ", ".join(f"{value:.3f}" for value in row["overlap"])
        draft = "-" if row["draft_ms"] is None else f"{row['draft_ms']:.2f}"
        lines.append(
            f"| {row['size']:,} | {row['coverage']:.3f} | {overlap} | {_interval(row['tokens_per_cycle'])} | {draft} | "
            f"{_interval(row['ms_per_cycle'])} | {_interval(row['to_plain'])} | {row['head_bytes'] / 1e6:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _interval(found: dict[str, Any] | None) -> str:
    return interval_text(None if found is None else Interval(**found))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.draft_vocab", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--pack", default="smollm2", metavar="PACK")
    for name, what in (
        ("run", "folder of forge train"),
        ("features", "shards to rank on"),
        ("held", "held-out shards"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="FOLDER", help=what)
    parser.add_argument("--out", type=Path, default=Path("outputs/draft-vocab"), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=6, metavar="N")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), metavar="A,B")
    parser.add_argument("--busy-ok", action="store_true", help="measure speed on a busy machine")
    given = parser.parse_args(words)
    for name in ("run", "features", "held", "out"):
        setattr(given, name, getattr(given, name).resolve())
    sizes = [measure(given, int(size)) for size in given.sizes.split(",")]
    receipt = {
        "schema": SCHEMA,
        "pack": given.pack,
        "code": code_identity(),
        "session": session(),
        "seeds": given.seeds,
        "sizes": sizes,
    }
    write_json(given.out / "draft-vocab.json", receipt)
    write_text(given.out / "draft-vocab.md", table(receipt))
    print(table(receipt), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
