"""What more data brings to a head: equal training on growing amounts of it, measured on text of several kinds.

    python -m benchmarks.data_amount --pack smollm2 --features SHARDS --held chats=SHARDS --held free-form=SHARDS \
        --shards 1,4,16 --out outputs/data-amount [-- --from-own --steps 200 --batch 8 ...]

Every amount is a run of `mtrun forge train` from the same start with the same steps; what follows `--` goes to it. The
amount 0 is the start itself, where that is the pack's own head. Interrupted, the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.draft_vocab import mtrun
from mtrun.runtime.forge.record import read_run
from mtrun.runtime.measure.code import code_identity
from mtrun.runtime.measure.machine import session
from mtrun.runtime.measure.store import write_json, write_text

SCHEMA = "mtrun.data-amount/1"
NAME = "data-amount"


def evaluated(given: argparse.Namespace, *run: str) -> dict[str, Any]:
    """Held-out overlap by depth for each kind of text."""
    found = {}
    for kind, folder in given.held.items():
        told = mtrun("forge", "eval", given.pack, "--features", str(folder), "--json", *_threads(given), *run)
        found[kind] = json.loads(told)["overlap"]
    return found


def measure(given: argparse.Namespace, shards: int) -> dict[str, Any]:
    """The figures of one amount."""
    run = given.out / f"run-{shards}"
    data = [word for folder in given.features for word in ("--features", str(folder))]
    where = ("--shards", str(shards), "--out", str(run), *_threads(given))
    mtrun("forge", "train", given.pack, *data, *where, *given.recipe)
    kept = read_run(run)
    tokens = sum(one["response_tokens"] for one in kept["data"])
    recipe = {"steps": kept["step"], "epochs": kept["epoch"], "seconds": kept["seconds"], "recipe": kept["recipe"]}
    return {"shards": shards, "response_tokens": tokens, "overlap": evaluated(given, "--run", str(run)), **recipe}


def _threads(given: argparse.Namespace) -> tuple[str, ...]:
    return ("--threads", str(given.threads))


def table(receipt: Mapping[str, Any]) -> str:
    """The receipt as Markdown."""
    kinds = list(receipt["amounts"][0]["overlap"])
    head = "".join(f" overlap on {kind}, depth 1, 2, 3 |" for kind in kinds)
    lines = [
        f"# Data of the head of {Path(receipt['pack']).name}",
        "",
        f"Training on growing amounts of chats, otherwise alike: `forge train {' '.join(receipt['command'])}`.",
        "Depths that the recipe does not train fall with time; read those that it does.",
        "",
        f"| answer tokens | steps | times over the data |{head}",
        "|---|---|---|" + "---|" * len(kinds),
    ]
    for row in receipt["amounts"]:
        cells = "".join(f" {', '.join(f'{value:.3f}' for value in row['overlap'][kind])} |" for kind in kinds)
        lines.append(f"| {row['response_tokens']:,} | {row['steps']} | {row['epochs']} |{cells}")
    return "\n".join([*lines, "", f"![overlap against data]({NAME}.svg)"]) + "\n"


def draw(receipt: Mapping[str, Any], path: Path) -> None:
    """Overlap against the amount of data, a line for each kind of text and depth. Needs matplotlib."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = [row for row in receipt["amounts"] if row["response_tokens"]]
    start = next((row for row in receipt["amounts"] if not row["response_tokens"]), None)
    with rc_context({"svg.hashsalt": NAME}):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for kind, style in zip(rows[0]["overlap"], ("-", "--", ":", "-."), strict=False):
            for depth in range(len(rows[0]["overlap"][kind])):
                tokens, values = [row["response_tokens"] for row in rows], [row["overlap"][kind][depth] for row in rows]
                axes.plot(tokens, values, style, color=f"C{depth}", marker="o", label=f"{kind}, depth {depth + 1}")
                if start:
                    axes.axhline(start["overlap"][kind][depth], color=f"C{depth}", linestyle=style, alpha=0.3)
        axes.set_xscale("log")
        axes.set_xlabel("answer tokens trained on" + (" (pale lines: the head before)" if start else ""))
        axes.set_ylabel("held-out overlap")
        figure.legend(loc="outside right upper", frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _held(word: str) -> tuple[str, Path]:
    kind, _, folder = word.partition("=")
    if not folder:
        raise argparse.ArgumentTypeError(f"write {word!r} as KIND=FOLDER")
    return kind, Path(folder).resolve()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pack", default="smollm2", metavar="PACK")
    parser.add_argument(
        "--features", type=Path, action="append", required=True, metavar="FOLDER", help="shards; several times"
    )
    parser.add_argument("--held", type=_held, action="append", required=True, metavar="KIND=FOLDER")
    parser.add_argument("--shards", default="1,4,16", metavar="A,B", help="amounts, in shards a folder")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--out", type=Path, default=Path(f"outputs/{NAME}"), metavar="FOLDER")
    parser.add_argument("recipe", nargs="*", metavar="-- OPTION", help="options of forge train")
    given = parser.parse_args(words)
    given.features, given.held = [folder.resolve() for folder in given.features], dict(given.held)
    given.out = given.out.resolve()
    amounts = [measure(given, int(shards)) for shards in given.shards.split(",")]
    if "--from-own" in given.recipe:
        amounts.insert(0, {"shards": 0, "response_tokens": 0, "overlap": evaluated(given), "steps": 0, "epochs": 0})
    receipt = {
        "schema": SCHEMA,
        "pack": given.pack,
        "command": given.recipe,
        "code": code_identity(),
        "session": session(),
        "amounts": amounts,
    }
    write_json(given.out / f"{NAME}.json", receipt)
    write_text(given.out / f"{NAME}.md", table(receipt))
    draw(receipt, given.out / f"{NAME}.svg")
    print(table(receipt), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
