"""What was measured, where, on what and by which code: the facts that head a report."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mtrun.runtime.report.document import Bullets, Table, table
from mtrun.runtime.report.laws import SOURCE, Codes
from mtrun.runtime.report.runs import Run

HEADINGS = (
    "run", "kind", "pack", "measured (UTC)", "load before, after", "plan", "trunk", "head", "commit", "set", "tokens",
)  # fmt: skip
_HEAD = "mtp.safetensors"


def runs_table(runs: Sequence[Run]) -> Table:
    """One row a run."""
    sources = [(run.name, cell) for run in runs for cell in run.cells]
    return table("runs", "Runs", HEADINGS, [_row(run) for run in runs], sources)


def surroundings(runs: Sequence[Run], codes: Codes) -> Bullets:
    """Machines, package versions, samplers, code and commands, each said once."""
    sessions = [session for run in runs for session in run.data["sessions"]]
    settings = [setting for run in runs for setting in run.settings.values()]
    lines = [f"machine: {text}" for text in _once(_machine(one["machine"]) for one in sessions)]
    lines += [f"packages: {text}" for text in _once(_versions(one["versions"]) for one in sessions)]
    lines += [f"sampler: {text}" for text in _once(_sampler(one["sampler"]) for one in settings if one.get("sampler"))]
    lines += _code(codes)
    lines += [f"command of {run.name}: `{_command(run)}`" for run in runs if run.data["command"]]
    return Bullets(tuple(lines))


def _command(run: Run) -> str:
    words = list(run.data["command"])
    return shlex.join(words if words[0] == "mtrun" else ["mtrun", *words])


def _row(run: Run) -> tuple[str, ...]:
    sessions, setting = run.data["sessions"], next(iter(run.settings.values()), None)
    pack = setting["pack"] if setting else {}
    started = _once(time.strftime("%Y-%m-%d", time.gmtime(one["started"])) for one in sessions)
    code = next((one["code"] for one in run.made_by), {})
    changed = " with local changes" if code.get("changes_sha256") else ""
    tokens = run.plan.get("tokens") or run.plan.get("max_tokens")
    return (
        run.name,
        run.kind,
        run.pack,
        ", ".join(started) or "-",
        "; ".join(_load(one) for one in sessions) or "-",
        short(run.data["plan_sha256"]),
        short(pack.get("trunk_identity")),
        short((pack.get("sha256") or {}).get(_HEAD)),
        short(code.get("commit")) + changed,
        str(run.data.get("set") or "-"),
        str(tokens or "-"),
    )


def short(digest: str | None) -> str:
    """The first 12 digits."""
    return digest[:12] if digest else "-"


def _once(texts: Any) -> list[str]:
    return list(dict.fromkeys(texts))


def _load(session: Mapping[str, Any]) -> str:
    told = [f"{one[0]:.2f}" if one else "unknown" for one in (session["load_before"], session["load_after"])]
    return ", ".join(told)


def _machine(found: Mapping[str, Any]) -> str:
    memory = f"{found['memory_bytes'] / 2**30:.0f} GiB"
    return f"{found['processor']}, {found['cores']} cores, {memory}, {found['system']} {found['machine']}"


def _versions(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def _sampler(found: Mapping[str, Any]) -> str:
    names = ("temperature", "top_p", "top_k", "min_p")
    return ", ".join(f"{name} {found[name]:g}" for name in names if found.get(name) is not None)


def _code(codes: Codes) -> list[str]:
    told = {part: short(digest) for part, digest in codes.usual.items()}
    who = "every receipt was made by it" if codes.agree else "receipts made by other code are labelled"
    lines = [f"code: source {told.get(SOURCE, '-')}; {who}"]
    for kind in ("law", "lane", "native"):
        parts = [f"{part.removeprefix(f'{kind} ')} {digest}" for part, digest in told.items() if part.startswith(kind)]
        lines += [f"code of {kind}: {', '.join(parts)}"] if parts else []
    return lines
