"""The words of a command line: refused with a fix, or rewritten into what Hydra reads without surprises."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtrun.runtime.config import hydra_private
from mtrun.runtime.config.aliases import ALIASES, Typed, replacement
from mtrun.runtime.config.hydra_private import Library
from mtrun.runtime.config.leaves import Leaf, leaves, members, sections
from mtrun.runtime.config.nearest import did_you_mean, nearest
from mtrun.runtime.errors import ConfigurationError

GROUPS = ("pack", "acceptance", "lanes", "sampler", "server", "profile")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_COMMA_NUMBER = re.compile(r"[0-9]*,[0-9]+")


@dataclass(frozen=True)
class Word:
    """One checked override: `text` for Hydra, `typed` for reports (secrets hidden)."""

    key: str
    text: str
    typed: str
    derived: bool = False  # follows from another word


def read(words: Sequence[Typed], library: Library) -> list[Word]:
    """Check and rewrite every word. Raises ConfigurationError on the first that cannot be honoured."""
    found: list[Word] = []
    for word in words:
        key, value = _split(word.text)
        if key in GROUPS:
            found.extend(_group(key, value, word.typed, library))
        else:
            found.append(_leaf_word(key, value, word.typed))
    return _with_pack_path(found)


def _split(word: str) -> tuple[str, str]:
    if word.startswith(("+", "~")):
        raise ConfigurationError(_prefix_sentence(word))
    key, equals, value = word.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigurationError(f"{word!r} is not an override: write key=value{_profile_hint(word)}")
    if "@" in key or "/" in key or key == "hydra" or key.startswith("hydra."):
        raise ConfigurationError(f"{key!r} is not a key of mtrun: set one of its keys or groups, as in profile=turbo")
    if not value:
        raise ConfigurationError(f"{key}= has no value: write {key}=VALUE, or {key}=null where the key may be unset")
    return key, value


def _prefix_sentence(word: str) -> str:
    bare = word.lstrip("+~")
    key = bare.partition("=")[0]
    if word.startswith("~"):
        fix = f"set {', '.join(members(key))}" if key in sections() and key not in GROUPS else f"set {key}=VALUE"
        return f"{word!r} would delete a key, and every key is needed: {fix} instead"
    if key in leaves() or key in GROUPS:
        return f"{word!r} needs no prefix: write {bare}"
    return f"{word!r} would add a key that nothing reads: {_unknown(key)}"


def _profile_hint(word: str) -> str:
    return f", or profile={word} for a profile" if _NAME.fullmatch(word) else ""


def _unknown(key: str) -> str:
    """The sentence about a key that does not exist."""
    better = replacement(key)
    if better is not None:
        return f"there is no key {key!r}, write {better}"
    section = key.partition(".")[0]
    if "." in key and section in sections():
        found = nearest(key, members(section)) or nearest(key, leaves())
        others = ", ".join(name.partition(".")[2] for name in members(section))
        return f"there is no key {key!r}" + (f", did you mean {found}?" if found else f": {section} has {others}")
    hint = did_you_mean(key, [*GROUPS, *leaves(), *ALIASES]) or ": mtrun --why lists all keys"
    return f"there is no key {key!r}{hint}"


def unknown_key(key: str) -> ConfigurationError:
    """The error for a key that the schema does not have, from a file or the command line."""
    if key.partition(".")[0] == "stamp":
        return ConfigurationError(
            f"{key} is written by the auto-arm alone: set lanes.{key.partition('.')[2] or 'NAME'}=true or =false"
        )
    return ConfigurationError(_unknown(key))


def _leaf_word(key: str, value: str, typed: str) -> Word:
    leaf = leaves().get(key)
    if leaf is None:
        raise _no_leaf(key)
    if value == "???":
        raise ConfigurationError(f"{key}=??? leaves the key without a value: write {key}=VALUE")
    if leaf.textual and not leaf.size:
        return Word(key, f"{key}={_text_value(value)}", f"{key}=(hidden)" if leaf.secret else typed)
    if _COMMA_NUMBER.fullmatch(value) and leaf.type in (int, float):
        raise ConfigurationError(f"{key}={value} holds a comma: write a decimal point, {key}={value.replace(',', '.')}")
    parsed = hydra_private.parse(f"{key}={value}")
    if parsed.sweep:
        raise ConfigurationError(_sweep_sentence(key, value, leaf))
    if "${" not in value:
        check(leaf, parsed.value)
    return Word(key, f"{key}={value}", typed)


def _no_leaf(key: str) -> ConfigurationError:
    if key in sections():
        return ConfigurationError(f"{key} is a group of keys, not a value: set one of {', '.join(members(key))}")
    group, _, rest = key.partition(".")
    if group == "profile" and rest:
        return ConfigurationError(f"{key!r} is not a key: a profile is chosen with profile=NAME")
    return unknown_key(key)


def _text_value(value: str) -> str:
    """Text exactly as typed: Hydra would read 012 as a number and a comma as a sweep."""
    if value == "null":
        return value
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    escaped = value.replace("\\'", "\\\\'").replace("'", "\\'")
    return f"'{escaped}{chr(92) if escaped.endswith(chr(92)) else ''}'"


def _sweep_sentence(key: str, value: str, leaf: Leaf) -> str:
    if leaf.type is list:
        return f"{key}={value} is not a list: write {key}=[{value}]"
    return f"{key}={value} is a sweep of several values: give one, or add -m to a command that can run many"


def check(leaf: Leaf, value: object, file: str | None = None) -> None:
    """Raise ConfigurationError where value may not stand at leaf; `file` is named where the value came from one."""
    problem = leaf.problem(value)
    if problem is None:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if leaf.key == "cascade.alpha" and number and 1 <= value < float("inf"):  # type: ignore[operator]
        problem = (
            f"cascade.alpha={value} would keep every draft and lies outside [0, 1): "
            "to force keeps for a load test write acceptance=synthetic synthetic.rate=1"
        )
    if leaf.key == "audit.require" and isinstance(value, str):
        problem = f"audit.require takes a list: write audit.require=[{value}]"
    raise ConfigurationError(f"{file}: {problem}" if file else problem)


def _group(group: str, value: str, typed: str, library: Library) -> list[Word]:
    bare = value.strip().strip("'\"")
    known = tuple(name for name in library.options(group) if (group, name) != ("pack", "path"))
    if group == "pack":
        return _pack(bare, typed, known)
    if bare.startswith(("[", "(", "{")):
        raise ConfigurationError(f"{group} takes one name, not {value}: write {group}=NAME, one of {', '.join(known)}")
    if "," in bare:
        first = bare.partition(",")[0] or "NAME"
        raise ConfigurationError(
            f"{group}={value} names several: write one, as in {group}={first}, or add -m to a command that can run many"
        )
    bare = bare.removesuffix(".yaml")
    if bare in known:
        return [Word(group, f"{group}={bare}", typed)]
    raise ConfigurationError(_no_choice(group, bare, known))


def _no_choice(group: str, name: str, known: Sequence[str]) -> str:
    if "/" in name or ".." in name or "\\" in name:
        return f"{group}={name} leaves the group: a {group} is one of {', '.join(known)}"
    hint = did_you_mean(name, known) or f": choose one of {', '.join(known)}"
    return f"the group {group} has no {name!r}{hint}"


def _pack(value: str, typed: str, known: Sequence[str]) -> list[Word]:
    if value == "path":
        return [Word("pack", "pack=path", typed)]
    if value in known:
        return [Word("pack", f"pack={value}", typed)]
    pack_kind(value, known)
    return [
        Word("pack", "pack=path", typed, derived=True),
        Word("pack.source", f"pack.source={_text_value(value)}", typed),
    ]


def pack_kind(source: str, known: Sequence[str]) -> str:
    """`folder` or `hub`. Raises ConfigurationError: neither."""
    if _is_folder(source):
        return "folder"
    if source.startswith((".", "/", "~")):
        raise ConfigurationError(
            f"there is no folder {source!r}: give pack= an existing folder, or a hub id owner/name"
        )
    if _HUB_ID.fullmatch(source) and ".." not in source:
        return "hub"
    if "," in source:
        raise ConfigurationError(f"pack={source} names several packs: write one, as in pack={source.partition(',')[0]}")
    raise ConfigurationError(
        f"there is no pack {source!r}: known packs are {', '.join(known)}; "
        "a folder is written ./folder, a hub id owner/name"
    )


def _is_folder(source: str) -> bool:
    try:
        return Path(source).expanduser().is_dir()
    except (RuntimeError, ValueError, OSError):  # an unknown ~user, a NUL byte, a name beyond the system's limit
        return False


def _with_pack_path(words: list[Word]) -> list[Word]:
    """`pack.source=X` alone is `pack=X`; beside a named pack it contradicts."""
    source = [word for word in words if word.key == "pack.source"]
    chosen = [word for word in words if word.key == "pack"]
    if not source or (chosen and chosen[-1].text == "pack=path"):
        return words
    if chosen:
        raise ConfigurationError(f"{chosen[-1].typed} and {source[-1].typed} name two packs: keep one")
    return [Word("pack", "pack=path", source[-1].typed, derived=True), *words]
