"""The lanes' verdicts as a receipt keeps them."""

from __future__ import annotations

from typing import Any


def verdicts_of(registry: Any) -> list[dict[str, Any]]:
    """A registry's verdicts as JSON: lane, state, reason, who decided, and the figures of its proof."""
    return [
        {
            "lane": verdict.lane,
            "state": verdict.state.value,
            "reason": verdict.reason,
            "decided_by": verdict.decided_by.source,
            "figures": None if verdict.proof is None else dict(verdict.proof.figures),
        }
        for verdict in registry.verdicts()
    ]
