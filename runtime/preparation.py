"""Everything about a run that is settled before a weight is read: compose -> pack -> evidence -> stamps.

Nothing here imports mlx, so that lanes of the process stage can still come first.
"""

from __future__ import annotations

from dataclasses import dataclass

from mtrun.lanes import catalogue
from mtrun.lanes.contract import Decision, Evidence, LaneSpec, PackEvidence
from mtrun.runtime import memory
from mtrun.runtime.arming import autoarm, evidence
from mtrun.runtime.arming.install import Orders
from mtrun.runtime.config.compose import Composed, explicit_lanes
from mtrun.runtime.config.schema import RunConfig
from mtrun.runtime.config.stamp import freeze, lane_decided_by, lane_value, resolved, stamp
from mtrun.runtime.packs import hub
from mtrun.runtime.packs.families import Family, family_of
from mtrun.runtime.packs.reader import PackDescription, describe
from mtrun.runtime.packs.tokenizer import PackTokenizer


@dataclass(frozen=True)
class Preparation:
    """A run that is decided but not loaded. `config` is typed and final; `composed` knows where values came from."""

    composed: Composed
    config: RunConfig
    pack: PackDescription
    family: Family
    tokenizer: PackTokenizer
    evidence: Evidence
    orders: Orders
    footprint: memory.Footprint

    @property
    def context_limit(self) -> int:
        """Tokens of prompt and reply together: the pack's, or engine.context_limit where that is smaller."""
        wanted = self.config.engine.context_limit
        return self.pack.context_length if wanted is None else min(wanted, self.pack.context_length)


def prepare(composed: Composed) -> Preparation:
    """Settles a composed configuration. Raises PackError and ConfigurationError; stamps and freezes `composed`."""
    source = composed.config.pack.source
    pack = describe(hub.resolve(source))
    family = family_of(pack)
    lanes = catalogue.load()
    known = evidence.gather(
        threads=composed.config.engine.threads,
        law=str(composed.config.acceptance.law.value),
        depth=composed.config.draft.depth,
        pack=pack_evidence(pack, family),
    )
    decisions = _decide(composed, lanes, known)
    config = resolved(composed)
    freeze(composed)
    need = memory.footprint(pack.config, pack.float32_bytes, family.cache_bytes(pack.config), pack.draft_vocab_size)
    memory.check_boot(need, config.engine.memory_limit_bytes)
    wanted = {name: (lane_value(composed, name), lane_decided_by(composed, name)) for name in lanes}
    orders = Orders(lanes, known, wanted, decisions)
    return Preparation(composed, config, pack, family, PackTokenizer(pack.folder), known, orders, need)


def pack_evidence(pack: PackDescription, family: Family) -> PackEvidence:
    """What lanes may know of a pack."""
    return PackEvidence(
        name=pack.name,
        family=pack.family,
        hidden_size=pack.hidden_size,
        vocab_size=pack.vocab_size,
        layers=pack.layers,
        quantized_bits=pack.quantized_bits,
        head=pack.head,
        draft_vocab_size=pack.draft_vocab_size if pack.head.ok else None,
        trimmable_cache=family.trimmable_cache(pack.config),
        head_dim=family.head_dim(pack.config),
        native=family.native(pack),
    )


def _decide(composed: Composed, lanes: dict[str, LaneSpec], known: Evidence) -> dict[str, Decision]:
    """The auto-arm's decisions, written into the configuration's stamps."""
    asked = {name: (value, composed.provenance[f"lanes.{name}"]) for name, value in explicit_lanes(composed).items()}
    decisions = autoarm.choose(lanes, known, asked)
    stamp(
        composed,
        {name: decision.ok for name, decision in decisions.items()},
        {name: decision.reason for name, decision in decisions.items()},
    )
    return decisions
