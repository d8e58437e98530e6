"""The only module that touches Hydra's private API (hydra-core 1.3): search path, parsing, defaults tree, merge.

Going below `hydra.compose` buys three things: which file set which value, no GlobalHydra to initialise and clear, and a
single pass over the files. Nothing here changes the working directory, logging or the environment.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import version as hydra_version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime, setup_globals
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.completion_plugin import DefaultCompletionPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import mtrun.conf
from mtrun.runtime.config.nearest import did_you_mean
from mtrun.runtime.config.schema import RunConfig
from mtrun.runtime.errors import ConfigurationError

# Hydra's plugin and schema registries and ANTLR's parser tables are shared by the whole process and unguarded.
_LOCK = threading.RLock()
_FAILURES = (
    HydraException,
    OmegaConfBaseException,
    yaml.YAMLError,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    AssertionError,
    RecursionError,
)
_ROOT = "config"
_CLASS_NAMES = re.compile(r"\w+(Error|Exception) raised while composing config:?\s*")


@dataclass(frozen=True)
class Source:
    """One file that contributes values, in merge order."""

    path: str  # as in the defaults list, e.g. "profile/turbo"
    file: Path | None  # None = the schema
    user: bool  # from the user's own folder
    values: Any  # plain containers, interpolations kept as text, nested under the file's package; a dict if well formed


@dataclass(frozen=True)
class Plan:
    """What Hydra will merge for some overrides."""

    config: DictConfig
    sources: tuple[Source, ...]
    choices: dict[str, str | None]  # group -> chosen name
    chosen_by: dict[str, str]  # group -> config path of the file whose `override` chose it


@dataclass(frozen=True)
class Value:
    """A parsed override value. Quoted text arrives as str; sweeps carry `sweep`."""

    value: Any
    sweep: bool
    package: str | None


class Library:
    """Our YAML folder, the user's own one if there is any, and the schema."""

    def __init__(self, user: Path | None) -> None:
        self.shipped = Path(mtrun.conf.__file__).parent
        self.user = user
        with translated(), _LOCK:
            hydra_version.setbase("1.3")
            Plugins.instance()
            setup_globals()
            _register_schema()
            self._loader = ConfigLoaderImpl(config_search_path=self._search_path())

    def _search_path(self) -> ConfigSearchPathImpl:
        path = ConfigSearchPathImpl()
        path.append("hydra", "pkg://hydra.conf")
        path.append("main", f"file://{self.shipped}")
        if self.user is not None:
            path.append("user", f"file://{self.user}")
        path.append("schema", "structured://")
        return path

    def options(self, group: str) -> tuple[str, ...]:
        """Names in a group, shipped and the user's."""
        with translated(), _LOCK:
            return tuple(self._loader.get_group_options(group, ObjectType.CONFIG))

    def plan(self, overrides: Sequence[str]) -> Plan:
        """Merge everything. Raises ConfigurationError."""
        with translated(self.user), _LOCK:
            parsed, repo = self._loader._parse_overrides_and_create_caching_repo(_ROOT, list(overrides))
            tree = create_defaults_list(repo, _ROOT, parsed, prepend_hydra=False, skip_missing=False)
            config = self._loader._compose_config_from_defaults_list(defaults=tree.defaults, repo=repo)
            sources = tuple(self._source(default, repo) for default in tree.defaults)
            OmegaConf.set_struct(config, True)
            ConfigLoaderImpl._apply_overrides_to_config(tree.config_overrides, config)
            by = {key: meta.containing_config_path for key, meta in tree.overrides.override_metadata.items()}
            return Plan(
                config=config,
                sources=sources,
                choices=dict(tree.overrides.known_choices),
                chosen_by={key: path for key, path in by.items() if path is not None},
            )

    def sources(self, overrides: Sequence[str]) -> tuple[Source, ...]:
        """The files that `plan` would merge, without merging them, so that their mistakes can be named first."""
        with translated(self.user), _LOCK:
            parsed, repo = self._loader._parse_overrides_and_create_caching_repo(_ROOT, list(overrides))
            tree = create_defaults_list(repo, _ROOT, parsed, prepend_hydra=False, skip_missing=False)
            return tuple(self._source(default, repo) for default in tree.defaults)

    def _source(self, default: Any, repo: Any) -> Source:
        loaded = repo.load_config(config_path=default.config_path)
        folder = {"main": self.shipped, "user": self.user}.get(loaded.provider)
        values: Any = OmegaConf.to_container(loaded.config, resolve=False) if folder is not None else {}
        package = default.package if default.package is not None else loaded.header["package"]
        for part in reversed(package.split(".") if package not in (None, "", "_global_") else []):
            values = {part: values}
        name = default.config_path if default.config_path.endswith(".yaml") else f"{default.config_path}.yaml"
        return Source(default.config_path, folder / name if folder else None, loaded.provider == "user", values)

    def with_hydra_node(self, overrides: Sequence[str]) -> DictConfig:
        """The whole tree that `@hydra.main` would see: ours and the `hydra` node. For display only."""
        with translated(self.user), _LOCK:
            JobRuntime.instance().set("name", "mtrun")
            return self._loader.load_configuration(_ROOT, list(overrides), RunMode.RUN)

    def search_path(self) -> list[tuple[str, str]]:
        """(provider, path) in the order of search."""
        return [(source.provider, source.full_path()) for source in self._loader.get_sources()]

    def complete(self, words: Sequence[str], incomplete: str) -> list[str]:
        """Hydra's own completion of an override word: groups, their options, keys. Never raises."""
        with _LOCK:
            try:
                plugin = DefaultCompletionPlugin(self._loader)
                found = plugin._query(config_name=_ROOT, line=" ".join([*words, incomplete]) if incomplete else "")
            except (*_FAILURES, SystemExit):
                return []
        hidden = ("hydra", "stamp", "_dummy")
        return [item for item in found if not item.startswith(hidden)]


def resolve_hydra(whole: DictConfig) -> None:
    """Resolve the `hydra` node of a whole tree in place; what only a Hydra job could know stays a reference."""
    from hydra.core.hydra_config import HydraConfig

    previous = HydraConfig.instance().cfg
    HydraConfig.instance().cfg = whole  # type: ignore[assignment]
    try:
        OmegaConf.resolve(whole.hydra)
    finally:
        HydraConfig.instance().cfg = previous


def _register_schema() -> None:
    node = OmegaConf.structured(RunConfig)
    _unlock(node)
    ConfigStore.instance().store(name="schema", node=node, provider="mtrun")


def _unlock(node: Any) -> None:
    # OmegaConf marks nodes of frozen dataclasses read-only, and then refuses to merge YAML into them.
    node._set_flag("readonly", None)
    for key in node if isinstance(node, DictConfig) else ():
        child = node._get_node(key)
        if OmegaConf.is_config(child):
            _unlock(child)


def parse(word: str) -> Value:
    """Read one `key=value`. Raises ConfigurationError."""
    with translated(), _LOCK:
        override = _parse_override(word)
        if override.is_sweep_override():
            return Value(None, True, override.package)
        return Value(_plain(override.value()), False, override.package)


def _parse_override(word: str) -> Override:
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        raise ConfigurationError(_unreadable(word)) from None


def _unreadable(word: str) -> str:
    return f"{word!r} cannot be read: write key=value, with quotes around text that holds symbols or spaces"


def _plain(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Every combination of a multirun's sweeps, in Hydra's order. Raises ConfigurationError."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    with translated(), _LOCK:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        batches = BasicSweeper.split_arguments(parsed, max_batch_size=None)
        return [list(job) for batch in batches for job in batch]


@contextmanager
def translated(user: Path | None = None) -> Iterator[None]:
    """Turn whatever Hydra, OmegaConf, ANTLR or YAML raise into a ConfigurationError of one sentence.

    Wide, since Hydra raises bare ValueError and AssertionError: only for calls into Hydra.
    """
    try:
        yield
    except ConfigurationError:
        raise
    except _FAILURES as error:
        raise ConfigurationError(_sentence(error, user)) from None


@contextmanager
def translated_reads() -> Iterator[None]:
    """The same for reading values of a composed tree, where only references and files can fail."""
    try:
        yield
    except (OmegaConfBaseException, OSError) as error:
        raise ConfigurationError(_sentence(error, None)) from None


def _sentence(error: BaseException, user: Path | None) -> str:
    if isinstance(error, yaml.YAMLError):
        return _yaml_sentence(error)
    if isinstance(error, OverrideParseException):
        return _unreadable(str(error.override))
    if isinstance(error, MissingConfigException):
        name = str(error.missing_cfg_file)
        options = [f"{name.rpartition('/')[0]}/{option}" for option in error.options or ()]
        return f"a defaults list names {name!r}, and there is no such file{did_you_mean(name, options)}"
    if isinstance(error, OmegaConfBaseException):
        return f"{error.full_key or 'a key'} refers to something it cannot take: write the value itself"
    if isinstance(error, RecursionError):
        return "the defaults lists of the chosen files extend each other in a circle: take one link out"
    if isinstance(error, UnicodeDecodeError):
        return f"{_undecodable(user)} is not UTF-8 text: save it as UTF-8"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a configuration file'} cannot be read: {error.strerror}"
    return f"the configuration cannot be composed: {_first_line(str(error))}"


def _undecodable(user: Path | None) -> str:
    for file in sorted(user.rglob("*.yaml")) if user is not None else ():
        try:
            file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            return str(file)
        except OSError:
            continue
    return "a YAML file"


def _yaml_sentence(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = _first_line(getattr(error, "problem", None) or str(error))
    where = f"{mark.name}, line {mark.line + 1}" if mark is not None else "a YAML file"
    return f"{where} is not valid YAML: {problem}"


def _first_line(text: str) -> str:
    cleaned = _CLASS_NAMES.sub("", text)
    lines = [line.strip().rstrip(".") for line in cleaned.splitlines() if line.strip()]
    return lines[0][:300] if lines else "it is malformed"
