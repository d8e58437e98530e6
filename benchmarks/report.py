"""The Markdown report of a receipt: every number in it is computed from the windows, none is typed.

python -m benchmarks.report outputs/laws.json [--write docs/results/laws.md | --check docs/results/laws.md]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import Plan
from benchmarks.receipt import Receipt, ReceiptError
from benchmarks.summary import CONTENTION, CellSummary, Window, by_cell, idle_lanes, lane_effect, summarise, usable
from mtrun.runtime.measure.stats import interval_text

SPEED_HEADINGS = (
    "cell", "law", "decode tok/s: median (min-max)", "to plain", "to exact", "tokens/cycle", "ms/cycle",
    "windows (seeds)",
)  # fmt: skip
TEXT_HEADINGS = (
    "cell", "draft acceptance", "deferral rate", "kept-draft rate", "mean D_TV", "target NLL", "gap to plain", "digest",
)  # fmt: skip
NOTES = """\
Intervals are 95 % Student t over seed means, ratios paired by seed and prompt on a log scale; an interval needs two
seeds. The band is a description: two bands are not compared. Decode tok/s leaves out prefill and the first token.
ms/cycle is the decode time of one target forward with all that belongs to it; for plain decoding one forward is one
token. Draft acceptance is accepted / drafted, the deferral rate deferred / positions, the kept-draft rate accepted /
positions, mean D_TV the mean total variation distance between target and draft rows over decided positions; all four
come from summed counters. Target NLL is in nats a token under the model's own unfiltered distribution at temperature 1,
measured over the emitted text after the window; a gap below zero is text that the model finds likelier, not better.
The digest is the sha256 of the emitted token ids of all windows, shortened."""


def render(receipt: Receipt) -> str:
    """The whole report, ending in a newline."""
    data, plan = receipt.data, receipt.plan
    counted, refused = usable(data)
    cells = by_cell(counted)
    parts = [f"# Acceptance laws on {(data['pack'] or {}).get('name', 'no pack')}", _facts(data, plan)]
    for side in plan.sides:
        parts.append(f"## `cpu_blas` {side.name}")
        if side.name in data["skipped_sides"]:
            parts.append(f"Not measured: {data['skipped_sides'][side.name]}.")
        if not any(name == side.name for name, _ in cells):
            parts.append("There is no window of this side in the receipt.")
            continue
        rows = [summarise(side.name, cell.name, cells) for cell in plan.cells]
        labels = {cell.name: cell.label for cell in plan.cells}
        parts.append(_table(SPEED_HEADINGS, [_speed_row(row, labels[row.cell], cells) for row in rows]))
        parts.append(_table(TEXT_HEADINGS, [_text_row(row) for row in rows]))
    parts += _lane_section(plan, cells)
    parts += [NOTES, _caveats(data, plan, counted, refused, cells)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(data: Mapping[str, Any], plan: Plan) -> str:
    last = data["sessions"][-1] if data["sessions"] else None
    pack, lines = data["pack"] or {}, []
    if last is not None:
        machine, versions = last["machine"], last["versions"]
        when = time.strftime("%Y-%m-%d", time.gmtime(last["started"]))
        memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
        lines.append(
            f"- measured {when} on {machine['processor']}, {machine['cores']} cores, {memory}, {machine['system']}"
        )
        lines.append("- " + ", ".join(f"{name} {version}" for name, version in versions.items() if version))
        loads = [f"{one[0]:.2f}" if one else "unknown" for one in (last["load_before"], last["load_after"])]
        lines.append(f"- load average before {loads[0]}, after {loads[1]}")
    head = (pack.get("sha256") or {}).get("mtp.safetensors")
    trunk = pack.get("trunk_identity")
    lines.append(
        f"- trunk {_short(trunk)}, head {_short(head)}, code {_code(data['code'])}, plan {_short(data['plan_sha256'])}"
    )
    sampler = _sampler(data)
    lines.append(f"- {plan.tokens} tokens a window, {len(plan.prompts)} prompts{sampler}")
    lines.append(f"- command: `python -m benchmarks.laws {' '.join(data['command'])}`")
    return "\n".join(lines)


def _sampler(data: Mapping[str, Any]) -> str:
    """The sampler in force, where the receipt has a cell that says it."""
    for cell in data["cells"].values():
        sampler = cell.get("sampler")
        if sampler:
            return ", " + ", ".join(f"{name} {sampler[name]:g}" for name in ("temperature", "top_p", "top_k", "min_p"))
    return ""


def _code(code: Mapping[str, Any]) -> str:
    return _short(code["commit"]) + (" with local changes" if code["changes_sha256"] else "")


def _speed_row(row: CellSummary, label: str, cells: Mapping[tuple[str, str], list[Window]]) -> tuple[str, ...]:
    band = row.speed
    seeds = len({window["seed"] for window in cells.get((row.side, row.cell), [])})
    return (
        row.cell,
        label,
        "no window" if band is None else f"{band.median:.2f} ({band.low:.2f}-{band.high:.2f})",
        "1" if row.cell == "plain" else interval_text(row.to_plain),
        "1" if row.cell == "exact" else interval_text(row.to_exact),
        interval_text(row.tokens_per_cycle),
        interval_text(row.ms_per_cycle, 1),
        f"{row.windows} ({seeds})",
    )


def _text_row(row: CellSummary) -> tuple[str, ...]:
    names = ("draft_acceptance", "deferral_rate", "kept_draft_rate", "mean_divergence")
    shown = tuple("-" if row.rates[name] is None else f"{row.rates[name]:.3f}" for name in names)
    gap = "-" if row.cell == "plain" else interval_text(row.nll_gap, 3, sign="+")
    return (row.cell, *shown, interval_text(row.nll, 3), gap, _short(row.digest))


def _lane_section(plan: Plan, cells: Mapping[tuple[str, str], list[Window]]) -> list[str]:
    rows = [(cell.name, effect) for cell in plan.cells if (effect := lane_effect(cell.name, cells)) is not None]
    if not rows:
        return []
    told = [(name, interval_text(one), str(one.n)) for name, one in rows]
    table = _table(("cell", "armed / declined", "seeds"), told)
    return ["## What `cpu_blas` does to decode tok/s", table]


def _caveats(
    data: Mapping[str, Any],
    plan: Plan,
    counted: list[Window],
    refused: list[tuple[Window, str]],
    cells: Mapping[tuple[str, str], list[Window]],
) -> str:
    """What a reader has to know before believing the tables."""
    lines = [f"- {sum(one['warm_up'] for one in data['windows'])} warm-up windows were dropped."]
    contended = sum(summarise(side, cell, cells).contended for side, cell in cells)
    lines.append(
        f"- {contended} of {len(counted)} windows took more than {CONTENTION:g} times their CPU time to decode."
    )
    for window, reason in refused:
        where = f"{window['side']}/{window['cell']} seed {window['seed']} prompt {window['prompt']}"
        lines.append(f"- refused: {where}: {reason}.")
    for side in plan.sides:
        expected = len(side.seeds) * min(side.prompts_per_seed, len(plan.prompts))
        for cell in plan.cells:
            have = len(cells.get((side.name, cell.name), []))
            if have != expected and side.name not in data["skipped_sides"]:
                lines.append(f"- incomplete: {side.name}/{cell.name} has {have} of {expected} windows.")
    for (side, cell), windows in cells.items():
        idle = idle_lanes(windows)
        if idle:
            lines.append(f"- armed, but its code never ran: {', '.join(idle)} in {side}/{cell}.")
    if len(data["sessions"]) > 1:
        lines.append(f"- measured in {len(data['sessions'])} sessions; each warmed up anew.")
    return "\n".join(lines)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _short(digest: str | None) -> str:
    return digest[:12] if digest else "unknown"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description="Report a receipt as Markdown.")
    parser.add_argument("receipt", type=Path, metavar="FILE.json")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--write", type=Path, metavar="FILE.md", help="write the report there instead of printing it")
    group.add_argument("--check", type=Path, metavar="FILE.md", help="exit 1 when the file is not this report")
    given = parser.parse_args(words)
    try:
        text = render(Receipt.read(given.receipt))
    except ReceiptError as error:
        print(f"benchmarks.report: {error}", file=sys.stderr)
        return 2
    if given.write is not None:
        given.write.parent.mkdir(parents=True, exist_ok=True)
        given.write.write_text(text, encoding="utf-8")
    elif given.check is not None:
        if not given.check.is_file() or given.check.read_text(encoding="utf-8") != text:
            again = f"python -m benchmarks.report {given.receipt} --write {given.check}"
            print(f"benchmarks.report: {given.check} is not what the receipt says: {again}", file=sys.stderr)
            return 1
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
