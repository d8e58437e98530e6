"""Speed of the acceptance laws on one pack and machine: interleaved windows, paired by seed, kept in one receipt.

    python -m benchmarks.laws --out outputs/laws.json [--resume] [pack=smollm2 engine.threads=1 ...]
    python -m benchmarks.report outputs/laws.json

Words with an equals sign are overrides for every cell. See benchmarks/README.md for what is measured and how.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cells import CELLS, SIDES, Cell, Plan, Side, Slot, schedule, warm_up
from benchmarks.receipt import Receipt, ReceiptError
from benchmarks.sides import SideError, SideProcess
from mtrun.runtime.measure.digest import ids_digest
from mtrun.runtime.measure.machine import load, session

PROMPTS = Path(__file__).parent / "heldout.txt"
BUSY = 0.5  # load a core above which the machine is called busy


class Run:
    """One session of measurement: the workers that are up, and the receipt they fill."""

    def __init__(self, receipt: Receipt) -> None:
        self.receipt, self.plan = receipt, receipt.plan
        self.workers: dict[str, SideProcess] = {}

    def measure(self) -> None:
        """Every window of the plan that the receipt lacks. Raises SideError; what was measured is saved by then."""
        done = self.receipt.done()
        slots = [slot for slot in schedule(self.plan) if slot.key not in done]
        if not slots:
            say("every window is measured already")
            return
        self.receipt.data["sessions"].append(session())
        try:
            for side in self.plan.sides:
                if any(slot.side == side.name for slot in slots):
                    self._open(side)
            for side in self.plan.sides:
                for slot in warm_up(self.plan, side) if side.name in self.workers else ():
                    self._window(slot, "warm-up")
            slots = [slot for slot in slots if slot.side in self.workers]
            for number, slot in enumerate(slots, 1):
                self._window(slot, f"{number}/{len(slots)}")
            self._close()
        finally:
            for worker in self.workers.values():
                worker.stop()
            self.receipt.data["sessions"][-1] |= {"ended": time.time(), "load_after": load()}
            self.receipt.save()

    def _open(self, side: Side) -> None:
        """A side that this machine cannot have is recorded with the reason; the others go on."""
        say(f"loading with cpu_blas {side.name}")
        worker = SideProcess(side.name)
        try:
            opened = worker.ask("open", cells={cell.name: self.plan.words(side.name, cell) for cell in self.plan.cells})
        except SideError as error:
            worker.stop()
            say(f"side {side.name} is left out: {error}")
            self.receipt.data["skipped_sides"][side.name] = str(error)
            return
        self.workers[side.name] = worker
        self.receipt.data["skipped_sides"].pop(side.name, None)
        self.receipt.data["pack"] = opened["pack"]
        for name, described in opened["cells"].items():
            kept = self.receipt.data["cells"].setdefault(f"{side.name}/{name}", {**described, "audit_after": None})
            if kept["config_sha256"] != described["config_sha256"]:
                raise SideError(f"cell {side.name}/{name} composes to another configuration than the receipt's")

    def _window(self, slot: Slot, progress: str) -> None:
        prompt = self.plan.prompts[slot.prompt]
        found = self.workers[slot.side].ask(
            "window", cell=slot.cell, prompt=prompt, seed=slot.request_seed, tokens=self.plan.tokens
        )
        # The declined side would take a minute to score a text, and the text does not depend on who reads it.
        scorer = self.workers.get("armed") or self.workers[slot.side]
        prompt_ids = found.pop("prompt_ids")
        found |= scorer.ask("score", prompt_ids=prompt_ids, ids=found["ids"])
        found |= {"prompt_tokens": len(prompt_ids), "prompt_digest": ids_digest(prompt_ids)}
        self.receipt.add(slot, progress == "warm-up", found)
        speed = (len(found["ids"]) - 1) / max(found["decode_seconds"], 1e-9)
        share = found["decode_seconds"] / max(found["decode_cpu_seconds"], 1e-9)
        say(
            f"{progress:>9} {slot.side:>8} {slot.cell:<13} seed {slot.seed} prompt {slot.prompt}: "
            f"{speed:6.2f} tok/s, wall/cpu {share:.2f}, nll {found['nll']:.3f}"
        )

    def _close(self) -> None:
        for side, worker in self.workers.items():
            for name, audit in worker.ask("close")["audits"].items():
                self.receipt.data["cells"][f"{side}/{name}"]["audit_after"] = audit


def say(line: str) -> None:
    """Progress is for people and never part of a result."""
    print(line, file=sys.stderr, flush=True)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.laws", description="Measure the acceptance laws on one pack."
    )
    names = ", ".join(cell.name for cell in CELLS)
    parser.add_argument("--out", type=Path, default=Path("outputs/laws.json"), metavar="FILE.json")
    parser.add_argument("--resume", action="store_true", help="complete FILE.json: measure only what it lacks")
    parser.add_argument("--seeds", type=int, default=8, metavar="N", help="seeds with cpu_blas armed (6 is the least)")
    parser.add_argument("--declined-seeds", type=int, default=6, metavar="N", help="seeds with cpu_blas declined")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens of every window")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="user prompts, one a line")
    parser.add_argument("--per-seed", type=int, default=4, metavar="N", help="prompts of each seed, in turn")
    parser.add_argument("--declined-per-seed", type=int, default=1, metavar="N")
    parser.add_argument("--cells", default=names.replace(" ", ""), metavar="A,B", help=f"of {names}")
    parser.add_argument("--cell", action="append", default=[], metavar='"NAME=WORDS"', help="one more cell, as typed")
    parser.add_argument("--sides", default=",".join(SIDES), metavar="A,B", help="of armed, declined (cpu_blas)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for every cell, such as pack=./folder")
    given = parser.parse_intermixed_args(words)
    if given.seeds < 2 or given.tokens < 2:
        parser.error("--seeds and --tokens take at least 2")
    if min(given.declined_seeds, given.per_seed, given.declined_per_seed) < 1:
        parser.error("--declined-seeds, --per-seed and --declined-per-seed take at least 1")
    known = {cell.name for cell in CELLS}
    for name in _listed(given.cells):
        if name not in known:
            parser.error(f"there is no cell {name}: name some of {names}, or describe one with --cell")
    for name in _listed(given.sides):
        if name not in SIDES:
            parser.error(f"there is no side {name}: name some of {', '.join(SIDES)}")
    if any("=" not in word for word in given.overrides):
        parser.error("overrides are written KEY=VALUE")
    return given


def plan_of(given: argparse.Namespace) -> Plan:
    """The plan that the options describe. Raises ReceiptError for a prompt file without prompts."""
    try:
        prompts = tuple(line for line in given.prompts.read_text(encoding="utf-8").splitlines() if line.strip())
    except OSError as error:
        raise ReceiptError(f"cannot read the prompts {given.prompts} ({error.strerror}): name a text file") from error
    if not prompts:
        raise ReceiptError(f"{given.prompts} holds no prompt: write one a line")
    wanted = _listed(given.cells)
    cells = [cell for cell in CELLS if cell.name in wanted]
    for text in given.cell:
        name, _, words = text.partition("=")
        cells.append(Cell(name, words, tuple(words.split())))
    names = [cell.name for cell in cells]
    if not names or len(set(names)) < len(names):
        raise ReceiptError(f"the cells are {', '.join(names) or 'none'}: give at least one, and every name once")
    sizes = {
        "armed": (given.seeds, given.per_seed),
        "declined": (min(given.declined_seeds, given.seeds), given.declined_per_seed),
    }
    sides = [Side(name, tuple(range(sizes[name][0])), sizes[name][1]) for name in SIDES if name in _listed(given.sides)]
    return Plan(tuple(cells), tuple(sides), prompts, given.tokens, tuple(given.overrides))


def _listed(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main(words: Sequence[str] | None = None) -> int:
    given = arguments(words)
    command = [*(sys.argv[1:] if words is None else words)]
    try:
        plan = plan_of(given)
        receipt = (Receipt.resume if given.resume else Receipt.start)(given.out, plan, command)
        average, cores = load(), os.cpu_count() or 1
        if average is not None and average[0] > BUSY * cores:
            say(f"the machine is busy (load {average[0]:.1f} on {cores} cores): speeds will be too low")
        Run(receipt).measure()
    except (ReceiptError, SideError) as error:
        say(f"benchmarks.laws: {error}")
        return 2
    say(f"receipt: {given.out}; now: python -m benchmarks.report {given.out}")
    return 1 if receipt.data["skipped_sides"] else 0


if __name__ == "__main__":
    sys.exit(main())
