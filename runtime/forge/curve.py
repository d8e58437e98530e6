"""The learning curve of a run as an SVG: loss and held-out overlap over training time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mtrun.runtime.errors import ConfigurationError

FILE = "curve.svg"


def draw(log: list[dict[str, Any]], path: Path) -> None:
    """Draws the log's lines into `path`. Raises ConfigurationError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("the curve needs matplotlib: pip install 'mtrun[forge]'.") from error

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    left = figure.subplots()
    minutes = [entry["seconds"] / 60 for entry in log]
    left.plot(minutes, [entry["loss"] for entry in log], color="0.35", label="training loss, depth 1 (nats)")
    left.set_xlabel("minutes of training")
    left.set_ylabel("loss (nats)")
    measured = [entry for entry in log if entry.get("overlap")]
    lines = list(left.get_lines())
    if measured:
        right = left.twinx()
        right.set_ylabel("held-out overlap")
        right.set_ylim(0, 1)
        for depth in range(max(len(entry["overlap"]) for entry in measured)):
            points = [(e["seconds"] / 60, e["overlap"][depth]) for e in measured if len(e["overlap"]) > depth]
            lines += right.plot(
                *zip(*points, strict=True), color=f"C{depth}", marker=".", label=f"overlap, depth {depth + 1}"
            )
    left.legend(lines, [str(line.get_label()) for line in lines], loc="upper center", ncols=2, frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})
