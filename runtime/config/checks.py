"""What no single key can show: laws with their knobs, lanes that contradict, a server open to strangers."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mtrun.runtime.config.leaves import leaves
from mtrun.runtime.config.nearest import did_you_mean
from mtrun.runtime.config.provenance import Origin, Provenance
from mtrun.runtime.config.schema import LANE_NAMES
from mtrun.runtime.errors import ConfigurationError

# Law -> (knobs it cannot do without, knobs it may read).
KNOBS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "exact": ((), ()),
    "typical": (("typical.threshold",), ("typical.eps",)),
    "typical-pi": (("typical.threshold",), ("typical.eps",)),
    "cascade": (("cascade.rule", "cascade.alpha"), ()),
    "synthetic": (("synthetic.rate",), ()),
}
_EXAMPLES = {
    "cascade.rule": "tokenv3",
    "cascade.alpha": "0.95",
    "typical.threshold": "0.2",
    "synthetic.rate": "0.8",
}
_ORIGIN_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")

Values = Mapping[str, Any]  # key -> plain value, enums as their names; lanes as True, False or None (not decided)
Origins = Mapping[str, Provenance]


def check_all(values: Values, origins: Origins) -> None:
    """Raise ConfigurationError, one sentence that names the fix, on the first contradiction."""
    check_law(values, origins)
    check_lanes(values)
    check_server(values)
    check_audit(values)


def check_law(values: Values, origins: Origins) -> None:
    """One law, all of its numbers, and no number of another law."""
    law = values["acceptance.law"]
    needed, optional = KNOBS[law]
    others = [key for required, also in KNOBS.values() for key in (*required, *also)]
    stray = [key for key in dict.fromkeys(others) if key not in (*needed, *optional) and _is_set(key, values, origins)]
    set_here = [key for key in needed if values[key] is not None]
    if stray and set_here:
        raise ConfigurationError(_two_dials(law, set_here[-1], stray, values, origins))
    if stray:
        raise ConfigurationError(_unread(law, stray, values, origins))
    for key in needed:
        if values[key] is None:
            raise ConfigurationError(
                f"acceptance={law} ({_by(origins['acceptance.law'])}) needs {key}, "
                f"which is null ({_by(origins[key])}): write {key}={_EXAMPLES[key]}, or acceptance=exact"
            )


def _by(origin: Provenance) -> str:
    return "command line" if origin.origin is Origin.COMMAND_LINE else origin.detail


def _is_set(key: str, values: Values, origins: Origins) -> bool:
    if leaves()[key].default is None:
        return values[key] is not None
    return origins[key].origin is not Origin.DEFAULT


def _reader(key: str) -> str:
    return next(law for law, (needed, optional) in KNOBS.items() if key in (*needed, *optional))


def _unset(keys: Sequence[str]) -> str:
    """What to write so that no key of these is set."""
    return " ".join(f"{key}=null" if leaves()[key].optional else f"no {key}" for key in keys)


def _unread(law: str, stray: Sequence[str], values: Values, origins: Origins) -> str:
    key = stray[0]
    return (
        f"{key}={values[key]} ({_by(origins[key])}) has no effect, since acceptance={law} "
        f"({_by(origins['acceptance.law'])}) does not read it: add acceptance={_reader(key)}, or write {_unset(stray)}"
    )


def _two_dials(law: str, key: str, stray: Sequence[str], values: Values, origins: Origins) -> str:
    other = stray[0]
    return (
        f"{key}={values[key]} ({_by(origins[key])}) and {other}={values[other]} ({_by(origins[other])}) "
        f"are dials of two laws, and acceptance={law} reads only the first: write {_unset(stray)}, "
        f"or acceptance={_reader(other)} with {_unset(KNOBS[law][0])}"
    )


def check_lanes(values: Values) -> None:
    """Explicit demands on lanes that cannot hold together. Imports lane files only where one is demanded."""
    explicit = {name: values[f"lanes.{name}"] for name in LANE_NAMES if values[f"lanes.{name}"] is not None}
    if True not in explicit.values():
        return
    from mtrun.lanes import catalogue, order

    try:
        found = order.contradictions(catalogue.load(), explicit)
    except ImportError as error:
        raise ConfigurationError(f"the lanes cannot be looked at, install mtrun again: {error}") from None
    if found:
        raise ConfigurationError(found[0])


def check_server(values: Values) -> None:
    """A server that strangers can reach has a key, or says on purpose that it has none."""
    host, key, no_auth = values["server.host"], values["server.api_key"], values["server.no_auth"]
    if key is not None and no_auth:
        raise ConfigurationError("server.api_key and server.no_auth=true contradict each other: keep one")
    if key is None and not no_auth and not is_loopback(host):
        raise ConfigurationError(
            f"server.host={host} is reachable from other machines: add server.api_key=SECRET, "
            "or server.no_auth=true to serve everyone on purpose"
        )
    for origin in values["server.allowed_origins"]:
        if not _ORIGIN_URL.fullmatch(origin):
            raise ConfigurationError(
                f"server.allowed_origins holds {origin!r}: an origin is scheme://host or scheme://host:port"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach host. A name other than localhost counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_audit(values: Values) -> None:
    """`audit.require` names lanes that exist, and none that is switched off."""
    for name in values["audit.require"]:
        if name not in LANE_NAMES:
            hint = did_you_mean(name, LANE_NAMES) or f": lanes are {', '.join(LANE_NAMES)}"
            raise ConfigurationError(f"audit.require names {name!r}, and there is no such lane{hint}")
        if values[f"lanes.{name}"] is False:
            raise ConfigurationError(
                f"audit.require names {name}, which lanes.{name}=false switches off: take one of the two out"
            )
