"""What the windows say: one table, every figure computed from the receipts. The round is the unit of replication."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.peers.folder import SCHEMA, Folder
from benchmarks.peers.plan import Plan
from mtrun.runtime.measure.figures import CONTENTION
from mtrun.runtime.measure.stats import Band, Interval, Values, band, interval_text, paired_ratio

NOTES = f"""\
The band is median (minimum-maximum) over rounds. Ratios are paired by round: the geometric mean with its 95 % Student t
interval on a log scale; an interval needs two rounds. Decode leaves out prefill and the first token; prefill ends with
the first token; `rows M` is one forward of M rows with logits of each, in rows a second. wall/CPU is the median of wall
seconds times the threads that run throughout over process CPU seconds: a figure above {CONTENTION:g} shared its core
with something else and is counted as flagged. Where a peer's threads do not run throughout (all but llama.cpp's) and
more than one is asked for, the flag says less."""


@dataclass(frozen=True)
class Line:
    """One figure of one peer."""

    figure: str  # prefill, decode, rows M
    peer: str
    speed: Band | None  # tokens a second; None: no window counts
    ratios: Mapping[str, Interval | None]  # to each reference, above one = faster
    contention: float | None  # median over all windows, flagged ones too
    flagged: int
    windows: int  # measured


@dataclass(frozen=True)
class Counted:
    """The figures of a run by (figure, peer): speeds that count by (round, 0), and the contention of all."""

    speeds: Mapping[tuple[str, str], Values]
    contention: Mapping[tuple[str, str], list[float]]


def contention(figure: Mapping[str, float], busy_threads: int) -> float:
    """Wall seconds over CPU seconds of one thread that runs throughout."""
    return figure["seconds"] * busy_threads / max(figure["cpu_seconds"], 1e-9)


def flagged(window: Mapping[str, Any], busy_threads: int) -> bool:
    """Whether any figure of the window shared its core with something else."""
    return any(contention(one, busy_threads) > CONTENTION for one in window["figures"].values())


def count(folder: Folder, keep_contended: bool = False) -> Counted:
    """Speeds of the run's windows; contended figures are left out unless they are to be kept."""
    speeds: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    shares: dict[tuple[str, str], list[float]] = {}
    for slot, window in folder.windows.items():
        busy = folder.run["peers"][slot.entry]["busy_threads"]
        for name, figure in window["figures"].items():
            share = contention(figure, busy)
            shares.setdefault((name, slot.entry), []).append(share)
            if keep_contended or share <= CONTENTION:
                own = speeds.setdefault((name, slot.entry), {})
                own[slot.round, 0] = figure["tokens"] / figure["seconds"]
    return Counted(speeds, shares)


def lines(folder: Folder, references: Sequence[str] = (), keep_contended: bool = False) -> list[Line]:
    """Figure by figure, the peers in the order of the plan."""
    counted = count(folder, keep_contended)
    named = references or default_references(folder)
    found = []
    for name in _figures(folder.plan):
        for entry in folder.plan.entries:
            shares = counted.contention.get((name, entry.name))
            if shares is None:
                continue
            own = counted.speeds.get((name, entry.name), {})
            ratios = {other: paired_ratio(own, counted.speeds.get((name, other), {})) for other in named}
            middle = band(shares)
            found.append(
                Line(
                    name,
                    entry.name,
                    band(list(own.values())),
                    ratios,
                    middle and middle.median,
                    sum(share > CONTENTION for share in shares),
                    len(shares),
                )
            )
    return found


def default_references(folder: Folder) -> list[str]:
    """The other runtimes that were measured; the first peer where there are none."""
    measured = [entry for entry in folder.plan.entries if entry.name in folder.run["peers"]]
    others = [entry.name for entry in measured if not entry.name.startswith("ours-")]
    return others or [entry.name for entry in measured[:1]]


def _figures(plan: Plan) -> list[str]:
    named = {"prefill": ["prefill"], "decode": ["decode"], "rows": [f"rows {width}" for width in plan.widths]}
    return [name for measure in plan.measures for name in named[measure]]


def to_json(folder: Folder, references: Sequence[str] = (), keep_contended: bool = False) -> dict[str, Any]:
    """The summary as JSON types."""
    return {
        "schema": f"{SCHEMA}/summary",
        "plan_sha256": folder.run["plan_sha256"],
        "contended_windows_kept": keep_contended,
        "lines": [asdict(line) for line in lines(folder, references, keep_contended)],
        "skipped": folder.run["skipped"],
    }


def render(folder: Folder, references: Sequence[str] = (), keep_contended: bool = False) -> str:
    """The summary as Markdown, ending in a newline."""
    named = list(references or default_references(folder))
    found = lines(folder, named, keep_contended)
    headings = ["figure", "peer", "tok/s", *(f"to {name}" for name in named), "wall/CPU", "windows (flagged)"]
    rows = [_row(line, named) for line in found]
    table = "\n".join(f"| {' | '.join(line)} |" for line in [headings, ["---"] * len(headings), *rows])
    kept = "Flagged windows are in the table." if keep_contended else "Flagged windows are left out of the table."
    parts = ["# Runtimes side by side", _facts(folder), table, NOTES, _peers(folder), kept]
    return "\n\n".join(parts) + "\n"


def _row(line: Line, named: Sequence[str]) -> list[str]:
    speed = line.speed
    return [
        line.figure,
        line.peer,
        "no window counts" if speed is None else f"{speed.median:.2f} ({speed.low:.2f}-{speed.high:.2f})",
        *("1" if name == line.peer else interval_text(line.ratios[name]) for name in named),
        "-" if line.contention is None else f"{line.contention:.2f}",
        f"{line.windows} ({line.flagged})",
    ]


def _facts(folder: Folder) -> str:
    plan, texts = folder.plan, []
    if folder.run["sessions"]:
        last = folder.run["sessions"][-1]
        machine, when = last["machine"], time.strftime("%Y-%m-%d", time.gmtime(last["started"]))
        memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
        texts.append(
            f"- measured {when} on {machine['processor']}, {machine['cores']} cores, {memory}, {machine['system']}"
        )
        loads = [f"{one[0]:.2f}" if one else "unknown" for one in (last["load_before"], last["load_after"])]
        texts.append(f"- load average before {loads[0]}, after {loads[1]}; {len(folder.run['sessions'])} sessions")
    texts.append(
        f"- {plan.rounds} rounds, {plan.threads} threads asked for; prefill {plan.prefill_tokens} tokens, "
        f"decode {plan.tokens} after {plan.prompt_tokens}"
    )
    commit = folder.run["code"]["commit"]
    changed = " with local changes" if folder.run["code"]["changes_sha256"] else ""
    texts.append(f"- code {commit[:12] if commit else 'unknown'}{changed}, plan {folder.run['plan_sha256'][:12]}")
    texts.append(f"- command: `python -m benchmarks.peers {' '.join(folder.run['command'])}`")
    return "\n".join(texts)


def _peers(folder: Folder) -> str:
    """What each peer is, and which were left out."""
    told = folder.run["peers"]
    known = [(entry.name, told[entry.name]) for entry in folder.plan.entries if entry.name in told]
    texts = [f"- {name}: {one['what']} ({one['version']}, threads {one['threads']})" for name, one in known]
    texts += [f"- {name} was left out: {reason}." for name, reason in folder.run["skipped"].items()]
    return "\n".join(texts)
