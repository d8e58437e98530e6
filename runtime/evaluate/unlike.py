"""What makes two runs unlike beyond the law that they were made to compare.

Of a setting these have to agree: pack, sampler, sources, versions, device, lanes and the rest of the configuration.
What may differ is the law (`acceptance`, `cascade`, `typical`, `synthetic`) and what follows from it:

- lanes. A lane that serves on one side alone is let pass where the other side's reason is the law's: code `law` (the
  lane cannot serve that law) or `nothing_drafted` (plain decoding), and where it requires a lane that is let pass, or
  gave way to one. A lane that was switched off, was not built or failed its proof is a difference.
- drafting. `draft.*` shows in the output only under a law that is not distribution-exact, so it counts as a difference
  where both laws are such.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

LAW_CODES = ("law", "nothing_drafted")  # of `LaneSpec.supports`: the law, or plain decoding, leaves the lane no work
_LAW = ("acceptance", "cascade", "typical", "synthetic")
# Held elsewhere in the setting in the form that took effect, or without any part in what is decoded.
_ASIDE = ("lanes", "stamp", "sampler", "pack", "server", "audit")
_DIGEST = re.compile("[0-9a-f]{64}")
_LONGEST = 60  # characters of a value that are shown

Setting = Mapping[str, Any]


def setting_differences(old: Setting, new: Setting, same_law: bool = False) -> list[str]:
    """One line a difference, `key: old -> new`; empty where the runs may be compared.

    same_law: for two sessions of one run, whose laws, lanes and drafting have to agree as well.
    """
    found = leaves(_pack(old), _pack(new), "pack")
    found += leaves(old["sampler"], new["sampler"], "sampler")
    found += leaves(_config(old, same_law), _config(new, same_law))
    if same_law or not (_exact(old) or _exact(new)):
        found += leaves(old["config"]["draft"], new["config"]["draft"], "draft")
    found += _lanes(old, new, same_law)
    found += leaves(old["code"]["source_sha256"], new["code"]["source_sha256"], "sources")
    found += leaves(old["versions"], new["versions"], "versions")
    return found + leaves(_device(old), _device(new), "device")


def leaves(old: Any, new: Any, name: str = "") -> list[str]:
    """Differences of two JSON values, one line each. An absent key is one of value null."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = dict.fromkeys([*old, *new])
        return [line for key in keys for line in leaves(old.get(key), new.get(key), f"{name}.{key}".strip("."))]
    return [] if old == new else [f"{name}: {_shown(old)} -> {_shown(new)}"]


def _shown(value: Any) -> str:
    """A value in one line; a long one is cut and told apart by its digest."""
    from mtrun.runtime.measure.digest import sha256_of

    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if _DIGEST.fullmatch(text):
        return text[:12]
    return text if len(text) <= _LONGEST else f"{text[:24]}... (sha256 {sha256_of(value)[:12]})"


def _pack(setting: Setting) -> dict[str, Any]:
    """What identifies the weights. The name of a folder does not, where checksums do."""
    pack = dict(setting["pack"])
    pack.pop("provenance", None)
    if pack.get("sha256"):
        pack.pop("name")
    return pack


def _config(setting: Setting, with_law: bool) -> dict[str, Any]:
    left = {key: value for key, value in setting["config"].items() if key not in (*_ASIDE, "draft")}
    return left if with_law else {key: value for key, value in left.items() if key not in _LAW}


def _exact(setting: Setting) -> bool:
    """Whether drafts leave no trace in what is emitted."""
    return setting["config"]["draft"]["depth"] == 0 or setting["law"]["distribution_exact"]


def _device(setting: Setting) -> dict[str, Any]:
    return {key: value for key, value in setting["audit"]["device"].items() if key != "threads"}  # is in the config


def _lanes(old: Setting, new: Setting, same_law: bool) -> list[str]:
    sides = [{one["lane"]: one for one in side["audit"]["lanes"]} for side in (old, new)]
    names = [
        name for name in dict.fromkeys([*sides[0], *sides[1]]) if _serves(sides[0], name) != _serves(sides[1], name)
    ]
    passed = set() if same_law else _passed(names, sides)
    return [
        f"lanes.{name}: {_verdict(sides[0], name)} -> {_verdict(sides[1], name)}"
        for name in names
        if name not in passed
    ]


def _serves(side: Mapping[str, Any], name: str) -> bool:
    return name in side and side[name]["state"] != "declined"


def _passed(names: list[str], sides: list[dict[str, Any]]) -> set[str]:
    """The lanes among `names` that differ because the law does, found until nothing is added."""
    from mtrun.lanes import catalogue, order

    lanes = catalogue.load()
    passed: set[str] = set()
    for _ in names:
        for name in names:
            declined = next((side[name] for side in sides if name in side and not _serves(side, name)), None)
            if declined is None:
                continue
            causes = {"requires": order.required_by, "excludes": order.excluded_by}.get(declined["code"])
            follows = causes is not None and name in lanes and not passed.isdisjoint(causes(lanes, name))
            if declined["code"] in LAW_CODES or follows:
                passed.add(name)
    return passed


def _verdict(side: Mapping[str, Any], name: str) -> str:
    if name not in side:
        return "unknown"
    one = side[name]
    return f"declined ({one['code']}: {one['reason'].rstrip('.')})" if one["state"] == "declined" else "armed"
