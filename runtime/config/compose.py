"""Compose one run from files and words: the same road for the command line, the server and the Python API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mtrun.runtime import environment
from mtrun.runtime.config import hydra_private
from mtrun.runtime.config.aliases import canonical
from mtrun.runtime.config.checks import check_all
from mtrun.runtime.config.files import check_sources, trace
from mtrun.runtime.config.hydra_private import Library, Plan
from mtrun.runtime.config.leaves import leaves
from mtrun.runtime.config.overrides import GROUPS, check, pack_kind, read
from mtrun.runtime.config.provenance import Origin, Provenance
from mtrun.runtime.errors import ConfigurationError

# The only values that may be read from the environment, and only where a person wrote ${oc.env:NAME} for them.
_ENVIRONMENT_KEYS = ("server.api_key", "pack.source")


@dataclass(frozen=True)
class Composed:
    """A checked configuration. Read-only, save for `stamp.*`, which `stamp.stamp` writes once."""

    config: DictConfig = field(repr=False)  # the tree of schema.RunConfig; may hold secrets
    provenance: dict[str, Provenance]  # every settable key -> where its value came from
    overrides: tuple[str, ...]  # as typed, secrets hidden
    choices: dict[str, str]  # group -> chosen name
    warnings: tuple[str, ...] = ()  # sentences
    words: tuple[str, ...] = field(default=(), repr=False)  # what Hydra was given; may hold secrets, never print


def user_folder() -> Path | None:
    """`~/.config/mtrun` where it exists."""
    try:
        folder = Path.home() / ".config" / "mtrun"
        return folder if folder.is_dir() else None
    except (RuntimeError, OSError):
        return None


def open_library(config_dir: Path | None = None) -> Library:
    """Our files and the user's. Raises ConfigurationError: `config_dir` is no folder."""
    if config_dir is None:
        return Library(user_folder())
    folder = config_dir.expanduser().absolute()
    if not folder.is_dir():
        raise ConfigurationError(
            f"there is no folder {str(config_dir)!r}: give --config-dir a folder that holds profile/"
        )
    return Library(folder)


def compose(overrides: Sequence[str], *, config_dir: Path | None = None) -> Composed:
    """Compose, check and trace.

    overrides: words such as `profile=turbo` or `cascade.alpha=0.9`; aliases too, as in `--cascade-threshold=0.9`.
    config_dir: a folder of the user's own YAML, extending ours by name; None = `~/.config/mtrun` where it exists.
    Raises ConfigurationError, one sentence, for everything that cannot be honoured.
    """
    with hydra_private.translated_reads():
        library = open_library(config_dir)
        typed, warnings = canonical(list(overrides))
        words = read(typed, library)
        texts = [word.text for word in words]
        check_sources(library.sources(texts), library)
        plan = library.plan(texts)
        _check_choices(plan)
        provenance = trace(plan, words, library)
        _derive_pack(plan, provenance, library)
        _take_key(plan, provenance)
        check_all(_values(plan.config, provenance), provenance)
    OmegaConf.set_readonly(plan.config, True)
    shown = tuple(dict.fromkeys(word.typed for word in words))
    choices = {group: name for group, name in plan.choices.items() if name is not None}
    return Composed(plan.config, provenance, shown, choices, (*warnings, *_idle_files(library)), tuple(texts))


def _idle_files(library: Library) -> list[str]:
    """Sentences about files of the user's folder that nothing reads."""
    idle = library.user / "config.yaml" if library.user is not None else None
    if idle is None or not idle.is_file():
        return []
    return [f"{idle} is never read: move its values to {idle.parent / 'profile' / 'NAME.yaml'} and type profile=NAME"]


def _check_choices(plan: Plan) -> None:
    for group in GROUPS:
        if plan.choices.get(group) is None:
            raise ConfigurationError(f"the group {group} has no choice left: a file sets it to null, name one there")


def _derive_pack(plan: Plan, provenance: dict[str, Provenance], library: Library) -> None:
    """Fill name and kind of a pack that was given as a folder or a hub id."""
    if plan.choices["pack"] != "path":
        return
    pack = plan.config.pack
    if pack.source is None:
        raise ConfigurationError("pack=path needs a source: write pack=./folder or pack=owner/name")
    known = tuple(name for name in library.options("pack") if name != "path")
    kind = pack_kind(pack.source, known)
    if pack.kind is not None and pack.kind.name != kind:
        raise ConfigurationError(
            f"pack.kind={pack.kind.name} does not fit {pack.source!r}, which is a {kind}: drop pack.kind"
        )
    path = Path(pack.source).expanduser()
    name = (path.name or path.absolute().name) if kind == "folder" else pack.source
    for key, value in (("kind", kind), ("name", name)):
        if pack[key] is None:
            pack[key] = value
            provenance[f"pack.{key}"] = Provenance(Origin.DERIVED, f"from pack.source={pack.source}")


def _take_key(plan: Plan, provenance: dict[str, Provenance]) -> None:
    """The server's key from the environment, where no file or word gives one and none was waived: it is a secret."""
    server = plan.config.server
    if not OmegaConf.is_missing(server, "api_key") and server.api_key is None and not server.no_auth:
        key = environment.api_key()
        if key is not None:
            server.api_key = key
            provenance["server.api_key"] = Provenance(Origin.DERIVED, "from MTRUN_API_KEY")


def _values(config: DictConfig, provenance: dict[str, Provenance]) -> dict[str, Any]:
    """Every leaf as a plain value, checked again now that interpolations have values; undecided lanes are None."""
    found: dict[str, Any] = {}
    for key, leaf in leaves().items():
        section, _, name = key.partition(".")
        raw = OmegaConf.to_container(config[section], resolve=False)[name]  # type: ignore[index, call-overload]
        if section == "lanes" and raw == leaf.default:
            found[key] = None
            continue
        if isinstance(raw, str) and "${" in raw:
            _refuse_environment(key, raw, provenance[key])
        value = config[section][name]
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True)
        check(leaf, value)
        found[key] = value.name if isinstance(value, Enum) else value
    return found


def _refuse_environment(key: str, raw: str, origin: Provenance) -> None:
    if "oc.env" in raw and key not in _ENVIRONMENT_KEYS:
        raise ConfigurationError(
            f"{key} ({origin.origin.value}) reads an environment variable: write the value itself, "
            f"only {' and '.join(_ENVIRONMENT_KEYS)} may use oc.env"
        )


def explicit_lanes(composed: Composed) -> dict[str, bool]:
    """Lanes that a profile, a file or the command line decided, by name; the others wait for the auto-arm."""
    raw = OmegaConf.to_container(composed.config.lanes, resolve=False)
    assert isinstance(raw, dict)
    return {
        str(name): bool(composed.config.lanes[name])
        for name, value in raw.items()
        if value != leaves()[f"lanes.{name}"].default
    }
