"""The table of `--why`: every key, its value, and who decided it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from mtrun.runtime.config.compose import Composed
from mtrun.runtime.config.leaves import leaves

HIDDEN = "(hidden)"


def why_table(composed: Composed) -> str:
    """Three columns: key, value, decided by. Lanes before the stamp show as `auto`; secrets are hidden."""
    rows = [("key", "value", "decided by"), *_rows(composed)]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {by}".rstrip() for key, value, by in rows)


def _rows(composed: Composed) -> Iterator[tuple[str, str, str]]:
    for key, leaf in leaves().items():
        section, _, name = key.partition(".")
        by = str(composed.provenance[key])
        if section == "lanes" and _undecided(composed, name):
            by = "auto-arm (decides at start-up, from evidence)"
            yield key, "auto", by
        else:
            value = composed.config[section][name]
            yield key, HIDDEN if leaf.secret and value is not None else shown(value), by


def _undecided(composed: Composed, lane: str) -> bool:
    return OmegaConf.is_interpolation(composed.config.lanes, lane) and OmegaConf.is_missing(composed.config.stamp, lane)


def shown(value: Any) -> str:
    """A value the way it is typed on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, ListConfig | list):
        return "[" + ",".join(str(item) for item in value) + "]"
    return str(getattr(value, "name", value))


def without_secrets(config: DictConfig) -> DictConfig:
    """A copy fit for printing."""
    copy = config.copy()
    OmegaConf.set_readonly(copy, False)
    for key, leaf in leaves().items():
        if leaf.secret and OmegaConf.select(copy, key) is not None:
            OmegaConf.update(copy, key, HIDDEN)
    return copy
