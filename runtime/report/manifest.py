"""manifest.json: every file of a report with its bytes and digest, and the receipts behind each figure and table.

{schema, title, matplotlib, runs [{name, path, kind, pack, plan_sha256, receipts{file: {bytes, sha256}}, cells{cell:
[file]}, shared [file]}], files{name: {bytes, sha256, sources}}, tables{name: {caption, sources}}}. A run's path is
relative to the report's folder. `sources` names "run/cell" pairs: the receipts of a figure are the files of these cells
and the shared files of their runs; "all" stands for every one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.measure.store import read_json
from mtrun.runtime.report.build import Report, compile_report, encode, render, write
from mtrun.runtime.report.chart import FOLDER, Chart, Source
from mtrun.runtime.report.document import Table
from mtrun.runtime.report.drawing import draw, matplotlib_version
from mtrun.runtime.report.runs import Run, read_run, read_runs

SCHEMA = "mtrun.report/1"
MANIFEST = "manifest.json"
ALL = ["all"]
TITLE = "mtrun, measured"


def make(folders: Sequence[Path], out: Path, title: str) -> dict[str, Any]:
    """Writes the report of the runs into `out`, over an older one. Returns the manifest."""
    runs = read_runs(folders)
    report = compile_report(runs, title)
    files = render(report)
    manifest = manifest_of(runs, report, files, out)
    for stale in _old_files(out) - files.keys():
        (out / stale).unlink(missing_ok=True)
    write(out, {**files, MANIFEST: encode(manifest)})
    return manifest


def manifest_of(runs: Sequence[Run], report: Report, files: Mapping[str, bytes], out: Path) -> dict[str, Any]:
    """The manifest of rendered files that will lie in `out`."""
    shown = {chart.file: _sources(chart.sources) for chart in report.charts}
    return {
        "schema": SCHEMA,
        "title": report.title,
        "matplotlib": matplotlib_version() if report.charts else None,
        "runs": [_run(run, out) for run in runs],
        "files": {name: {**_measure(content), "sources": shown.get(name, ALL)} for name, content in files.items()},
        "tables": {
            block.name: {"caption": block.caption, "sources": _sources(block.sources)}
            for block in report.blocks
            if isinstance(block, Table)
        },
    }


def check(out: Path) -> list[str]:
    """What drifted since the report was written, a sentence each; empty when it is what its receipts say.

    Pictures are drawn again where matplotlib is the version that drew them; with another one, or none, they are held to
    their digests and everything else is made again around them.
    """
    manifest = read_json(out / MANIFEST, SCHEMA)
    drifted = [line for run in manifest["runs"] for line in _changed_receipts(out, run)]
    changed = {name: line for name, stated in manifest["files"].items() if (line := _changed_file(out, name, stated))}
    drifted += changed.values()
    try:
        runs = [read_run(_place(out, run), run["name"]) for run in manifest["runs"]]
        again = compile_report(runs, manifest["title"])
        files = render(again, _pencil(out, manifest))
    except ConfigurationError as error:
        return [*drifted, f"the report cannot be made again: {error}"]
    whole = [name for name in files if name in manifest["files"] and name not in changed]
    drifted += [f"{name} is not what its receipts say" for name in whole if (out / name).read_bytes() != files[name]]
    drifted += [f"{name} is missing" for name in files if name not in manifest["files"]]
    drifted += [f"{name} has no receipts behind it" for name in manifest["files"] if name not in files]
    if not drifted and encode(manifest_of(runs, again, files, out) | _pen(manifest)) != (out / MANIFEST).read_bytes():
        drifted.append(f"{MANIFEST} is not what the receipts say")
    return drifted


def drawn_elsewhere(out: Path) -> str | None:
    """A sentence where the report's pictures came from another matplotlib than the one here."""
    stated, here = read_json(out / MANIFEST, SCHEMA)["matplotlib"], matplotlib_version()
    if stated == here or stated is None:
        return None
    return f"pictures were drawn by matplotlib {stated} and here is {here or 'none'}: they were held to their digests"


def _pencil(out: Path, manifest: Mapping[str, Any]) -> Any:
    """What draws: matplotlib again, or the files as they are."""
    if manifest["matplotlib"] == matplotlib_version():
        return draw

    def kept(chart: Chart) -> bytes:
        try:
            return (out / chart.file).read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{chart.file} cannot be read ({error.strerror})") from error

    return kept


def _pen(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {"matplotlib": manifest["matplotlib"]}


def _run(run: Run, out: Path) -> dict[str, Any]:
    cells = {cell: sorted(file for file, of in run.files.items() if of == cell) for cell in run.cells}
    return {
        "name": run.name,
        "path": Path(os.path.relpath(run.folder.resolve(), out.resolve())).as_posix(),
        "kind": run.kind,
        "pack": run.pack,
        "plan_sha256": run.data["plan_sha256"],
        "receipts": {file: _measure((run.folder / file).read_bytes()) for file in sorted(run.files)},
        "cells": cells,
        "shared": sorted(file for file, of in run.files.items() if of == ""),
    }


def _sources(sources: Sequence[Source]) -> list[str]:
    return list(dict.fromkeys(f"{run}/{cell}" for run, cell in sources))


def _measure(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _place(out: Path, run: Mapping[str, Any]) -> Path:
    return out / run["path"]


def _changed_receipts(out: Path, run: Mapping[str, Any]) -> list[str]:
    """Receipts that are gone, changed or new."""
    folder, drifted = _place(out, run), []
    for file, stated in run["receipts"].items():
        path = folder / file
        if not path.is_file():
            drifted.append(f"receipt {run['name']}/{file} is gone")
        elif _measure(path.read_bytes()) != stated:
            drifted.append(f"receipt {run['name']}/{file} was changed")
    there = {path.relative_to(folder).as_posix() for path in folder.glob("windows/*.json")}
    return drifted + [f"receipt {run['name']}/{file} is new" for file in sorted(there - run["receipts"].keys())]


def _changed_file(out: Path, name: str, stated: Mapping[str, Any]) -> str | None:
    path = out / name
    if not path.is_file():
        return f"{name} is gone"
    content = _measure(path.read_bytes())
    if any(content[key] != stated[key] for key in content):
        return f"{name} was changed after it was written"
    return None


def _old_files(out: Path) -> set[str]:
    """Pictures of an older report in the folder."""
    if not (out / MANIFEST).is_file():
        return set()
    return {f"{FOLDER}/{path.name}" for path in (out / FOLDER).glob("*.svg")}
