"""What the contributing YAML files say: checked key by key, and traced to where each value came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtrun.runtime.config.hydra_private import Library, Plan, Source
from mtrun.runtime.config.leaves import leaves, members, sections
from mtrun.runtime.config.overrides import Word, check, unknown_key
from mtrun.runtime.config.provenance import BUILT_IN, Origin, Provenance
from mtrun.runtime.errors import ConfigurationError


def check_sources(sources: Sequence[Source], library: Library) -> None:
    """Refuse unknown keys, wrong types and ranges, paths out of a group and shadowed names, with the file named."""
    for source in sources:
        if ".." in source.path.split("/"):
            raise ConfigurationError(f"a defaults list names {source.path!r}: a name may not leave its group")
        if source.file is None:
            continue
        if not source.user and library.user is not None:
            _refuse_shadowed(source, library)
        if not isinstance(source.values, dict):
            raise ConfigurationError(f"{source.file} holds a list or a word: write key: value lines")
        if "profile" in source.values:
            raise ConfigurationError(
                f"{source.file} lacks the first line '# @package _global_', which every profile needs"
            )
        for key, value in _flat(source):
            check_file_value(key, value, source)


def _refuse_shadowed(source: Source, library: Library) -> None:
    assert library.user is not None
    assert source.file is not None
    twin = library.user / source.file.relative_to(library.shipped)
    if twin.is_file() and source.path != "config":
        raise ConfigurationError(f"{twin} has the name of a shipped file, which would win: give it another name")


def check_file_value(key: str, value: Any, source: Source) -> None:
    """One value of one file. Raises ConfigurationError."""
    leaf = leaves().get(key)
    if leaf is None:
        raise _misplaced(key, source)
    if isinstance(value, str) and "${" in value:
        return
    if value == "???":
        raise ConfigurationError(f"{source.file} leaves {key} without a value: write one, or take the line out")
    check(leaf, value, str(source.file))


def _misplaced(key: str, source: Source) -> ConfigurationError:
    if key in sections():
        return ConfigurationError(
            f"{source.file} sets {key} to a value, but it is a group of keys: set one of {', '.join(members(key))}"
        )
    return ConfigurationError(f"{source.file}: {unknown_key(key)}")


def _flat(source: Source) -> Iterator[tuple[str, Any]]:
    for section, content in source.values.items():
        if isinstance(content, dict):
            for name, value in content.items():
                yield from _flat_member(f"{section}.{name}", value)
        else:
            yield str(section), content


def _flat_member(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat_member(f"{key}.{name}", inner)
    else:
        yield key, value


def trace(plan: Plan, words: Sequence[Word], library: Library) -> dict[str, Provenance]:
    """Where each value of the plan came from: the last file in merge order, then the command line."""
    found: dict[str, Provenance] = dict.fromkeys(leaves(), BUILT_IN)
    by_word = {word.key: word for word in words}
    for source in plan.sources:
        if source.file is not None:
            origin = _file_provenance(source, plan, by_word, library)
            found |= {key: origin for key, _ in _flat(source)}
    for key, leaf in leaves().items():
        if key in by_word:
            found[key] = Provenance(Origin.COMMAND_LINE, by_word[key].typed)
        node = plan.config._get_node(key.partition(".")[0])._get_node(key.partition(".")[2])  # type: ignore[union-attr]
        raw = node._value()  # type: ignore[union-attr]
        if isinstance(raw, str) and "${" in raw and raw != leaf.default:
            found[key] = Provenance(Origin.DERIVED, f"{raw}, {found[key]}")
    return found


def _file_provenance(source: Source, plan: Plan, words: Mapping[str, Word], library: Library) -> Provenance:
    group, _, name = source.path.rpartition("/")
    if source.user:
        return Provenance(Origin.USER_FILE, str(source.file))
    assert source.file is not None
    shown = f"conf/{source.file.relative_to(library.shipped).as_posix()}"
    if group == "profile":
        return Provenance(Origin.PROFILE_FILE, shown)
    if not group:
        return Provenance(Origin.DEFAULT, shown)
    if group in words and plan.choices.get(group) == name:
        return Provenance(Origin.GROUP_FILE, f"{shown}, chosen by {words[group].typed}")
    chooser = plan.chosen_by.get(group)
    return Provenance(Origin.GROUP_FILE, f"{shown}, chosen by {chooser}" if chooser else shown)
