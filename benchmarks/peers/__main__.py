"""Plain decoding and prefill of one model in several runtimes: interleaved windows, ratios with intervals, one table.

    python -m benchmarks.peers --out outputs/peers [--resume] [--peer-python PATH] [engine.prefill_chunk=256 ...]

Words with an equals sign are overrides for every cell of ours. What is measured: benchmarks/peers/README.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import summary
from benchmarks.peers.base import AbsentError
from benchmarks.peers.folder import Folder, ReceiptError
from benchmarks.peers.plan import MEASURES, MODULES, Entry, Plan, Slot, schedule
from benchmarks.peers.process import PeerError, PeerProcess
from mtrun.runtime.bench import preflight
from mtrun.runtime.bench.cells import named_cells, standard_cells
from mtrun.runtime.measure.digest import ids_digest
from mtrun.runtime.measure.machine import load, session
from mtrun.runtime.measure.store import write_json

PROMPTS = Path(__file__).parents[1] / "heldout.txt"
WARM_UP = 8  # tokens read and made once before anything counts
DEPTH = 3  # drafts a cycle of the standard cells
Start = Callable[[Entry], PeerProcess]


def say(line: str) -> None:
    """Progress is for people and never part of a result."""
    print(line, file=sys.stderr, flush=True)


class Texts:
    """The ids that the windows read: for prefill one text, for the others a chat prompt that changes by round."""

    def __init__(self, pack: Path, lines: Sequence[str], plan: Plan) -> None:
        """Raises PackError where the pack's tokenizer cannot be read."""
        from benchmarks.peers.texts import chat_prompt, running_text
        from mtrun.runtime.packs.tokenizer import PackTokenizer

        tokenizer = PackTokenizer(pack)
        self.prefill = running_text(tokenizer, lines, plan.prefill_tokens)
        self.prompts = [chat_prompt(tokenizer, lines, number, plan.prompt_tokens) for number in range(plan.rounds)]


class Run:
    """One session of measurement: the peers that are up, and the folder they fill."""

    def __init__(self, folder: Folder, texts: Any, start: Start, keep_contended: bool) -> None:
        self.folder, self.plan, self.texts = folder, folder.plan, texts
        self.start, self.keep_contended = start, keep_contended
        self.up: dict[str, PeerProcess] = {}

    def measure(self) -> None:
        """Every window of the plan that the folder lacks or holds flagged. A peer that fails is left out from there."""
        slots = [slot for slot in schedule(self.plan) if not self._done(slot)]
        if not slots:
            say("every window is measured already")
            return
        self.folder.run["sessions"].append(session())
        self.folder.save()
        try:
            for entry in self.plan.entries:
                if any(slot.entry == entry.name for slot in slots):
                    self._open(entry)
            slots = [slot for slot in slots if slot.entry in self.up]
            for number, slot in enumerate(slots, 1):
                if slot.entry in self.up:  # it may have failed since
                    self._window(slot, f"{number}/{len(slots)}")
        finally:
            for process in self.up.values():
                process.stop()
            self.folder.run["sessions"][-1] |= {"ended": time.time(), "load_after": load()}
            self.folder.save()

    def _done(self, slot: Slot) -> bool:
        window = self.folder.windows.get(slot)
        if window is None:
            return False
        return self.keep_contended or not summary.flagged(window, self.folder.run["peers"][slot.entry]["busy_threads"])

    def _open(self, entry: Entry) -> None:
        """A peer that this machine cannot have is recorded with the reason; the others go on."""
        say(f"loading {entry.name}")
        settings = {**entry.settings, "threads": self.plan.threads, "context": self.plan.context}
        process = None
        try:
            process = self.start(entry)
            told = process.ask("open", settings=settings)
            process.ask("decode", ids=self.texts.prompts[0][:WARM_UP], tokens=WARM_UP, seed=0)
        except PeerError as error:
            if process is not None:
                process.stop()
            self._skip(entry.name, str(error))
            return
        self.up[entry.name] = process
        self.folder.run["skipped"].pop(entry.name, None)
        self.folder.run["peers"][entry.name] = told
        self.folder.save()

    def _skip(self, name: str, reason: str) -> None:
        say(f"{name} is left out: {reason}")
        self.folder.run["skipped"][name] = reason.rstrip(".")
        self.folder.save()

    def _window(self, slot: Slot, progress: str) -> None:
        head = {"started": time.time(), "load": load()}
        try:
            told = self.up[slot.entry].ask(slot.measure, **self._words(slot))
            told |= {"digest": ids_digest(told["ids"])} if "ids" in told else {}
        except PeerError as error:
            self.up.pop(slot.entry).stop()
            self._skip(slot.entry, f"{slot.measure} of round {slot.round} failed: {error}")
            return
        self.folder.add(slot, {**head, **told})
        busy = self.folder.run["peers"][slot.entry]["busy_threads"]
        texts = []
        for name, figure in told["figures"].items():
            speed = figure["tokens"] / max(figure["seconds"], 1e-9)
            texts.append(f"{name} {speed:.1f} tok/s, wall/cpu {summary.contention(figure, busy):.2f}")
        say(f"{progress:>9} round {slot.round} {slot.entry:<18} {'; '.join(texts)}")

    def _words(self, slot: Slot) -> dict[str, Any]:
        if slot.measure == "prefill":
            return {"ids": self.texts.prefill}
        prompt = self.texts.prompts[slot.round]
        if slot.measure == "decode":
            return {"ids": prompt, "tokens": self.plan.tokens, "seed": slot.round}
        return {"ids": prompt, "widths": list(self.plan.widths), "repeats": self.plan.repeats}


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.splitlines()[0])
    add = parser.add_argument
    names = ", ".join(cell.name for cell in standard_cells(DEPTH))
    add("--out", type=Path, default=Path("outputs/peers"), metavar="FOLDER", help="receipts and summary")
    add("--resume", action="store_true", help="complete FOLDER: measure only what it lacks or holds flagged")
    add("--peers", default="ours,mlx-lm,llama.cpp", metavar="A,B", help=f"of {', '.join(MODULES)}")
    add("--cells", default="plain,exact,tokenv3-0.95", metavar="A,B", help=f"ours: of {names}")
    add("--cell", action="append", default=[], metavar='"NAME=WORDS"', help="ours: one more cell, as typed")
    add("--pack", default="smollm2", metavar="NAME", help="pack name or folder, for ours and mlx-lm")
    add("--rounds", type=int, default=6, metavar="N", help="windows of each measure and peer")
    add("--threads", type=int, default=1, metavar="N", help="for every peer that takes a number")
    add("--measures", default=",".join(MEASURES), metavar="A,B", help=f"of {', '.join(MEASURES)}")
    add("--prefill-tokens", type=int, default=512, metavar="N")
    add("--prompt-tokens", type=int, default=128, metavar="N", help="before decode and rows")
    add("--tokens", type=int, default=128, metavar="N", help="decoded by each window")
    add("--widths", default="1,2,4,8", metavar="M,M", help="rows of one forward")
    add("--repeats", type=int, default=9, metavar="N", help="forwards of each width in a window, of which the median")
    add("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="lines that the texts are made of")
    add("--cache", type=Path, default=Path("outputs/cache"), metavar="FOLDER", help="where fetched GGUF files are kept")
    add("--peer-python", default=sys.executable, metavar="PATH", help="interpreter for llama.cpp and transformers")
    add("--reference", default="", metavar="A,B", help="lines of the table that ratios are formed to")
    add("--keep-contended", action="store_true", help="count windows that shared their core, too")
    add("overrides", nargs="*", metavar="KEY=VALUE", help="ours: for every cell")
    given = parser.parse_intermixed_args(words)
    given.widths = _numbers(parser, given.widths)
    least = [given.rounds, given.threads, given.prefill_tokens, given.prompt_tokens, given.repeats, *given.widths]
    if min(least) < 1 or given.tokens < 2:
        parser.error("counts take at least 1, --tokens at least 2")
    for flag, known in (("peers", MODULES), ("measures", MEASURES)):
        for name in _listed(getattr(given, flag)):
            if name not in known:
                parser.error(f"--{flag} has no {name}: name some of {', '.join(known)}")
    if any("=" not in word for word in given.overrides):
        parser.error("overrides are written KEY=VALUE")
    return given


def _listed(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _numbers(parser: argparse.ArgumentParser, text: str) -> list[int]:
    try:
        return [int(number) for number in _listed(text)]
    except ValueError:
        parser.error("--widths are whole numbers with commas, such as 1,2,4,8")


def entries(given: argparse.Namespace, pack: Path) -> list[Entry]:
    """The lines of the table; `pack` is the pack's folder. Raises ReceiptError for none or for one named twice,
    and ConfigurationError for a cell that cannot be read."""
    wanted = _listed(given.peers)
    found: list[Entry] = []
    if "ours" in wanted:
        for cell in named_cells(given.cells, given.cell, DEPTH):
            words = [*cell.overrides, f"pack={given.pack}", *given.overrides]
            found.append(Entry(f"ours-{cell.name}", MODULES["ours"], {"overrides": words}))
    if "mlx-lm" in wanted:
        found.append(Entry("mlx-lm", MODULES["mlx-lm"], {"pack": str(pack)}))
    files = {"gguf": _gguf(given)}
    if "llama.cpp" in wanted:
        for name, kind in (("llama.cpp-published", None), ("llama.cpp-q4_0", "q4_0")):
            found.append(Entry(name, MODULES["llama.cpp"], {**files, "format": kind}, foreign=True))
    if "transformers" in wanted:
        found.append(Entry("transformers", MODULES["transformers"], files, foreign=True))
    names = [entry.name for entry in found]
    if not names or len(set(names)) < len(names):
        raise ReceiptError(f"the peers are {', '.join(names) or 'none'}: give at least one, and every name once")
    return found


def _gguf(given: argparse.Namespace) -> str | None:
    """Where the published file will be; None for a pack that has none, which its peers are told when they start."""
    from benchmarks.peers.texts import gguf_path

    try:
        return str(gguf_path(given.pack, given.cache.absolute()))
    except AbsentError:
        return None


def starter(given: argparse.Namespace) -> Start:
    """Starts peers, after what they need has been fetched. What it returns raises PeerError."""
    from benchmarks.peers.texts import fetch_gguf

    def start(entry: Entry) -> PeerProcess:
        if entry.foreign:
            try:
                fetch_gguf(given.pack, given.cache.absolute())
            except AbsentError as absent:
                raise PeerError(str(absent)) from absent
        return PeerProcess(entry.name, entry.module, given.peer_python if entry.foreign else sys.executable)

    return start


def plan_of(given: argparse.Namespace, pack: Path) -> Plan:
    """The plan that the options describe; `pack` is the pack's folder. Raises what `entries` raises."""
    measures = tuple(name for name in MEASURES if name in _listed(given.measures))
    return Plan(
        tuple(entries(given, pack)),
        given.rounds,
        given.threads,
        given.prefill_tokens,
        given.prompt_tokens,
        given.tokens,
        tuple(given.widths),
        given.repeats,
        measures,
    )


def prompt_lines(path: Path) -> list[str]:
    """The lines that hold something. Raises ReceiptError."""
    try:
        found = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise ReceiptError(f"cannot read the prompts {path} ({error.strerror}): name a text file") from error
    if not found:
        raise ReceiptError(f"{path} holds no prompt: write one a line")
    return found


def conclude(folder: Folder, references: Sequence[str], keep_contended: bool) -> None:
    """Writes summary.json and summary.md and prints the latter."""
    text = summary.render(folder, references, keep_contended)
    write_json(folder.path / "summary.json", summary.to_json(folder, references, keep_contended))
    (folder.path / "summary.md").write_text(text, encoding="utf-8")
    print(text, end="")


def main(words: Sequence[str] | None = None) -> int:
    given = arguments(words)
    command = [*(sys.argv[1:] if words is None else words)]
    from mtrun.runtime.errors import MtrunError
    from mtrun.runtime.packs import hub

    try:
        pack = hub.resolve(given.pack)
        plan = plan_of(given, pack)
        references = _listed(given.reference)
        unknown = set(references) - {entry.name for entry in plan.entries}
        if unknown:
            known = ", ".join(entry.name for entry in plan.entries)
            raise ReceiptError(f"--reference {', '.join(sorted(unknown))} is not measured: name some of {known}")
        folder = (Folder.resume if given.resume else Folder.start)(given.out, plan, command)
        texts = Texts(pack, prompt_lines(given.prompts), plan)
        for sentence in preflight.check(preflight.look(), busy_ok=True):
            say(sentence)
        Run(folder, texts, starter(given), given.keep_contended).measure()
        conclude(folder, references, given.keep_contended)
    except (ReceiptError, MtrunError) as error:
        say(f"benchmarks.peers: {error}")
        return 2
    return 1 if folder.run["skipped"] else 0


if __name__ == "__main__":
    sys.exit(main())
