"""Audits compared and demanded: against a stored one, against `audit.require`, and from a running server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mtrun.runtime.errors import AuditError, ConfigurationError
from mtrun.runtime.verdicts import SCHEMA, State, Verdict

# Times, counts, measurements, and sentences for people: what two honest audits of one set-up may differ in.
VOLATILE = frozenset(
    {"serving_since", "summary", "reason", "figures", "first_engaged_at", "engaged_count", "served_by", "stand_asides"}
)
FETCH_TIMEOUT = 10.0  # seconds
FETCH_LIMIT = 4 * 2**20  # bytes; an audit has a few kilobytes


def diff(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """What differs between two audits, one line each; empty when they agree.

    Lanes are matched by name. Sentences are not compared, their codes are. A lane expected armed may also be engaged
    (it has served by now), not the other way round. Raises AuditError when one of the two is no audit.
    """
    _check_audit(expected, "the expected audit")
    _check_audit(actual, "the audit in force")
    lines = _differences("", _without_lanes(expected), _without_lanes(actual))
    old, new = _lanes(expected), _lanes(actual)
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            lines.append(f"lanes.{name}: expected, but not in the catalogue any more")
        elif name not in old:
            lines.append(f"lanes.{name}: in the catalogue, but not expected")
        else:
            lines.extend(_differences(f"lanes.{name}.", _expected_lane(old[name], new[name]), new[name]))
    return lines


def require(verdicts: Iterable[Verdict], lanes: Iterable[str]) -> None:
    """Raises AuditError unless each named lane is armed or engaged, ConfigurationError for a name that is no lane.

    A lane whose work another lane's code does (`Verdict.served_by`) is armed, and meets the demand: it is in place and
    proved, and serves as soon as the other steps aside.
    """
    by_name = {verdict.lane: verdict for verdict in verdicts}
    demanded = list(dict.fromkeys(lanes))
    for name in demanded:
        if name not in by_name:
            raise ConfigurationError(f"audit.require names {name!r}, which is no lane: {_suggestion(name, by_name)}")
    lacking = [by_name[name] for name in demanded if by_name[name].state is State.DECLINED]
    if lacking:
        reasons = "; ".join(f"{verdict.lane} is declined ({verdict.reason.rstrip('.')})" for verdict in lacking)
        raise AuditError(f"audit.require is not met: {reasons}; mend that or take the lane out of audit.require")


def read(path: str | Path) -> dict[str, Any]:
    """A stored audit. Raises AuditError: the file is absent, unreadable, or no audit."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AuditError(f"cannot read the audit {path} ({error}): store one with mtrun audit --json > FILE") from error
    return _parse(text, str(path))


def fetch(url: str, api_key: str | None = None, timeout: float = FETCH_TIMEOUT) -> dict[str, Any]:
    """The audit of a running server, from `url`/verdicts. Raises AuditError with what to type when that fails.

    Proxies are not used, and the key is not sent on after a redirect.
    """
    import urllib.error
    import urllib.request

    address = _address(url)
    request = urllib.request.Request(address, headers={"Accept": "application/json"})
    if api_key:
        request.add_unredirected_header("Authorization", f"Bearer {api_key}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as reply:
            body = reply.read(FETCH_LIMIT + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise AuditError(_http_failure(address, error.code)) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise AuditError(f"no server answers at {address} ({reason}): start one, or correct --url") from error
    if len(body) > FETCH_LIMIT:
        raise AuditError(f"{address} answered with more than an audit can hold: is --url that of an mtrun server?")
    return _parse(body.decode("utf-8", errors="replace"), address)


def _address(url: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise AuditError(f"--url {url!r} is no web address: write it as http://HOST:PORT")
    base = url.rstrip("/")
    return base if base.endswith("/verdicts") else f"{base}/verdicts"


def _http_failure(address: str, code: int) -> str:
    if code in (401, 403):
        return f"{address} refused the request with HTTP {code}: give the server's API key"
    if code == 503:
        return f"{address} is not ready (HTTP 503): ask again when the model is loaded"
    return f"{address} answered HTTP {code}: is --url that of an mtrun server?"


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise AuditError(f"{where} holds no JSON ({error}): expected what mtrun audit --json prints") from error
    _check_audit(found, where)
    return found


def _check_audit(found: Any, where: str) -> None:
    if not isinstance(found, Mapping) or not isinstance(found.get("lanes"), list):
        raise AuditError(f"{where} is no audit: expected what mtrun audit --json prints")
    if found.get("schema") != SCHEMA:
        raise AuditError(
            f"{where} has schema {found.get('schema')!r}, not {SCHEMA}: store it again with mtrun audit --json"
        )
    if not all(isinstance(lane, Mapping) and isinstance(lane.get("lane"), str) for lane in found["lanes"]):
        raise AuditError(f"{where} has a lane without a name: store it again with mtrun audit --json")


def _lanes(audit: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {lane["lane"]: lane for lane in audit["lanes"]}


def _without_lanes(audit: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in audit.items() if key != "lanes"}


def _expected_lane(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """A lane stored as armed accepts one that has been engaged since."""
    served = (old.get("state"), new.get("state")) == (State.ARMED.value, State.ENGAGED.value)
    return {**old, "state": State.ENGAGED.value} if served else old


def _differences(prefix: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for key in [*old, *(key for key in new if key not in old)]:
        if key in VOLATILE:
            continue
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines.extend(_differences(f"{prefix}{key}.", before, after))
        elif before != after:
            lines.append(f"{prefix}{key}: expected {json.dumps(before)}, found {json.dumps(after)}")
    return lines


def _suggestion(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near else f"name one of {', '.join(known)}"
