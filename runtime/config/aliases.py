"""Names that users of such systems already type. This table is the only place that knows them."""

from __future__ import annotations

from dataclasses import dataclass

from mtrun.runtime.errors import ConfigurationError

# What is typed -> the one key. Works on the command line, warns once, loses to the key itself.
ALIASES = {
    "--cascade-threshold": "cascade.alpha",
    "--cascade-rule": "cascade.rule",
    "--typical-threshold": "typical.threshold",
    "cascade.threshold": "cascade.alpha",
    "typical.delta": "typical.threshold",
}

# Names that never worked here, with what to type instead.
RENAMED = {
    "model": "pack",
    "mode": "acceptance",
    "law": "acceptance",
    "acceptance.mode": "acceptance.law",
    "acceptance.rule": "cascade.rule",
    "num_speculative_tokens": "draft.depth",
    "draft.tokens": "draft.depth",
    "server.key": "server.api_key",
    "server.auth": "server.no_auth",
    "engine.memory": "engine.memory_limit",
    "temperature": "sampler.temperature",
    "top_p": "sampler.top_p",
    "top_k": "sampler.top_k",
    "seed": "sampler.seed",
}


@dataclass(frozen=True)
class Typed:
    """One word of the command line: `text` in canonical form, `typed` as the person wrote it."""

    text: str
    typed: str


def canonical(words: list[str]) -> tuple[list[Typed], list[str]]:
    """Replace aliases. Returns the words, aliases first so that they lose, and one warning for each alias.

    Raises ConfigurationError: an alias without a value.
    """
    given = {key_of(word) for word in words}
    replaced: dict[str, Typed] = {}
    kept: list[Typed] = []
    warnings: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        key = ALIASES.get(name)
        if key is None:
            kept.append(Typed(word, word))
            continue
        if not equals or not value:
            raise ConfigurationError(f"{name} needs a value: write {key}=VALUE")
        if key in given:
            warnings[name] = f"{name} is another name of {key}, which is also given and wins: drop {name}"
            continue
        warnings[name] = f"{name} is another name of {key}: write {key}={value}"
        replaced[key] = Typed(f"{key}={value}", word)
    return [*replaced.values(), *kept], list(warnings.values())


def key_of(word: str) -> str:
    """The key or group that a word sets, without Hydra's prefixes."""
    return word.partition("=")[0].lstrip("+~")


def replacement(key: str) -> str | None:
    """What to type instead of a key that does not exist, where that is known for certain."""
    return ALIASES.get(key) or RENAMED.get(key)
