"""The text of `--cfg`, `--info` and `--why`: a configuration looked at, nothing run."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from mtrun.runtime.config import hydra_private
from mtrun.runtime.config.compose import Composed, open_library
from mtrun.runtime.config.leaves import leaves
from mtrun.runtime.config.nearest import did_you_mean
from mtrun.runtime.config.why import without_secrets
from mtrun.runtime.errors import ConfigurationError


def cfg_text(composed: Composed, kind: str, resolve: bool, package: str | None, config_dir: Path | None) -> str:
    """YAML of `--cfg job|hydra|all`. Lanes stay references: only start-up decides them.

    Raises ConfigurationError: a package that does not exist.
    """
    job = without_secrets(composed.config)
    if resolve:
        _resolve(job)
    shown = job if kind == "job" else _with_hydra(job, composed, kind, resolve, config_dir)
    if package in (None, "", "_global_"):
        return OmegaConf.to_yaml(shown)
    return _package_text(shown, package)


def _package_text(shown: DictConfig, package: str) -> str:
    with hydra_private.translated_reads():
        if package not in _paths(shown):
            raise ConfigurationError(f"there is no package {package!r}{did_you_mean(package, _paths(shown))}")
        undecided = package.partition(".")[0] in ("lanes", "stamp")
        found = _raw(shown, package) if undecided else OmegaConf.select(shown, package)
    if OmegaConf.is_config(found):
        return f"# @package {package}\n{OmegaConf.to_yaml(found)}"
    return f"{'null' if found is None else getattr(found, 'name', found)}\n"


def _raw(shown: DictConfig, package: str) -> object:
    section, _, name = package.partition(".")
    return OmegaConf.to_container(shown[section], resolve=False)[name] if name else shown[section]  # type: ignore[index, call-overload]


def _paths(shown: DictConfig) -> list[str]:
    sections = [str(key) for key in shown]
    return [*sections, *(f"{section}.{name}" for section in sections for name in shown[section])]


def _resolve(job: DictConfig) -> None:
    with hydra_private.translated_reads():
        for section in job:
            if section not in ("lanes", "stamp"):
                OmegaConf.resolve(job[section])


def _with_hydra(job: DictConfig, composed: Composed, kind: str, resolve: bool, config_dir: Path | None) -> DictConfig:
    whole = open_library(config_dir).with_hydra_node(composed.words)
    hydra = whole.hydra
    OmegaConf.set_readonly(hydra, False)
    hydra.overrides.task = list(composed.overrides)
    hydra.job.override_dirname = ",".join(composed.overrides)
    if resolve:
        with hydra_private.translated_reads():
            hydra_private.resolve_hydra(whole)
    if kind == "hydra":
        return OmegaConf.create({"hydra": hydra})
    return OmegaConf.create({**{str(key): job[key] for key in job}, "hydra": hydra})


def info_text(composed: Composed, config_dir: Path | None) -> str:
    """What `--info` prints: where files are searched, which were chosen, what was typed."""
    library = open_library(config_dir)
    lines = ["search path:"]
    lines += [f"  {provider:<7} {path}" for provider, path in library.search_path()]
    lines += ["merged, later wins:"]
    lines += [f"  {source.path:<26} {source.file or 'schema'}" for source in library.sources(composed.words)]
    lines += ["choices:", *(f"  {group}: {name}" for group, name in sorted(composed.choices.items()))]
    lines += ["overrides:", *(f"  {text}" for text in composed.overrides or ("none",))]
    lines += [f"keys: {len(leaves())}, each with its value and who decided it: --why"]
    return "\n".join(lines)
