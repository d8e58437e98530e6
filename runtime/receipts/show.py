"""A window told to a person: what was asked, what was on, who decided, what came of it."""

from __future__ import annotations

from typing import Any

from mtrun.runtime.receipts.opened import Receipt
from mtrun.runtime.receipts.text import columns, decided_by, figure, figures, law_text, leaves, shown


def joined(receipt: Receipt) -> dict[str, Any]:
    """The window and its setting as one JSON object."""
    return {"window": receipt.window, "setting": receipt.setting}


def account(receipt: Receipt) -> str:
    """The window in readable lines."""
    parts = (_asked, _law, _decided, _lanes, _figures, _shadows, _code)
    return "\n".join(line for part in parts for line in part(receipt))


def _asked(receipt: Receipt) -> list[str]:
    window, pack = receipt.window, receipt.setting["pack"]
    place = [f"seed {window['seed']}", f"prompt {window['prompt']}", f"round {window['round']}"]
    trunk = pack["trunk_identity"]
    lines = [
        f"{receipt.path.name}: {window['kind']}, cell {window['cell']} ({receipt.label})",
        f"asked     {window['tokens']} tokens after {window['context']} of a prompt; {', '.join(place)}, "
        f"request seed {window['request_seed']}",
        f"pack      {pack['name']} ({pack['family']}), trunk {trunk[:12] if trunk else 'without identity'}",
        f"sampler   {', '.join(f'{key} {shown(value)}' for key, value in receipt.setting['sampler'].items() if value)}",
        f"reply     {len(window['ids'])} tokens, {window['reason']}, digest {window['digest'][:16]}",
    ]
    lines += [f"note      {note}" for note in window["notes"]]
    lines += ["WARM-UP   this window is never counted"] if window["warm_up"] else []
    return lines + ([f"REFUSED   {window['refused']}"] if window["refused"] else [])


def _law(receipt: Receipt) -> list[str]:
    law = receipt.window["law"]
    return [f"law       {law_text(law)}; {'engaged' if law['engaged'] else 'not engaged'}: {law['reason']}"]


def _decided(receipt: Receipt) -> list[str]:
    """Values that are not built in. Lanes have a list of their own, and unset values say nothing."""
    setting = receipt.setting
    rows = [
        (key, shown(value), decided_by(setting, key))
        for key, value in leaves(setting["config"])
        if not key.startswith(("lanes.", "stamp.")) and value is not None
        if setting["provenance"].get(key, ["default"])[0] != "default"
    ]
    words = " ".join(setting["overrides"]) or "none"
    return [f"words     {words}", "decided, where not built in", *(columns(rows) if rows else ["  nothing"])]


def _lanes(receipt: Receipt) -> list[str]:
    verdicts = receipt.window["verdicts"]
    rows = []
    for lane in receipt.setting["audit"]["lanes"]:
        state, count = verdicts.get(lane["lane"], (lane["state"], 0))
        by = (lane.get("decided_by") or {}).get("source", "unknown")
        rows.append((lane["lane"], f"{state} {count}" if count else state, by, lane["reason"]))
    return ["lanes in this window, with calls of their code", *columns(rows)]


def _figures(receipt: Receipt) -> list[str]:
    rows = [(name, figure(value)) for name, value in figures(receipt.window).items()]
    depths = receipt.window["rates"]["accepted_by_depth"]
    rows += [("rates.accepted_by_depth", ", ".join(map(figure, depths)))] if depths else []
    return ["figures", *columns(rows)]


def _shadows(receipt: Receipt) -> list[str]:
    shadow = receipt.window["shadow"]
    if not shadow:
        return []
    rows = [
        (name, f"predicted keep {figure(one['keep_rate_predicted'])}", f"{one['positions']} positions")
        for name, one in shadow.items()
    ]
    sentence = next(iter(shadow.values())).get("validity", "")
    return [f"shadow laws ({sentence})" if sentence else "shadow laws", *columns(rows)]


def _code(receipt: Receipt) -> list[str]:
    setting, window = receipt.setting, receipt.window
    code, machine = setting["code"], setting["machine"]
    versions = ", ".join(f"{name} {one}" for name, one in setting["versions"].items() if one)
    law = setting.get("law_code_sha256")
    rows = [("sources", code["source_sha256"][:12]), ("commit", (code["commit"] or "none")[:12])]
    rows += [("law code", law[:12])] if law else []
    load = ", ".join(map(figure, window["load"] or ())) or "unknown"
    processor = machine.get("processor") or machine["machine"]
    return [
        f"code      {', '.join(f'{name} {value}' for name, value in rows)}",
        f"versions  {versions}",
        f"machine   {processor}, {machine.get('cores')} cores, {machine['system']}; load {load}",
    ]
