"""What a measured configuration is called: the law with its knob, then whatever else was typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtrun.runtime.config.compose import Composed

# Words that say no more than the law's own name does, or which pack it is measured on.
_SAID = re.compile(
    r"(profile|pack|pack\.source|acceptance|acceptance\.law|cascade\.(rule|alpha)|typical\.threshold|synthetic\.rate"
    r"|--[\w-]+)$"
)


def cell_name(composed: Composed) -> str:
    """Such as plain, exact, tokenv3-0.95, typical-0.2, exact-lanes-none, tokenv3-0.95-draft.depth-2."""
    words = [word for word in composed.overrides if not _SAID.match(_key(word))]
    if composed.config.draft.depth == 0:
        words = [word for word in words if _key(word) != "draft.depth"]
    if composed.choices.get("lanes", "auto") != "auto" and not any(_key(word) == "lanes" for word in words):
        words.append(f"lanes {composed.choices['lanes']}")
    if any(found.source == "user file" for found in composed.provenance.values()):
        words.append(composed.choices["profile"])
    return "-".join([_law(composed.config), *map(_slug, words)])


def label(law: Mapping[str, Any]) -> str:
    """A law in words: its name, its knobs, and whether the answers follow the model's own distribution."""
    knobs = [f"rule={law['rule']}"] if law["rule"] else []
    knobs += [f"{name}={value:g}" for name, value in law["parameters"].items()]
    return " ".join([law["law"], *knobs, "(distribution-exact)" if law["distribution_exact"] else "(lossy)"])


def _law(config: Any) -> str:
    law = str(config.acceptance.law.value)
    if config.draft.depth == 0:
        return "plain"
    if law == "cascade":
        return f"{config.cascade.rule.value}-{config.cascade.alpha:g}"
    knob = {"typical": config.typical.threshold, "typical-pi": config.typical.threshold}
    knob["synthetic"] = config.synthetic.rate
    return f"{law}-{knob[law]:g}" if law in knob else law


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def _slug(word: str) -> str:
    return re.sub(r"[^\w.]+", "-", word).strip("-")
