"""The contract of a lane: what it is, when it applies, how it is installed and how it is proved.

A lane never decides alone whether it runs. The auto-arm asks `supports(evidence)`, the configuration says yes or no,
`install` puts the lane into the engine's parts, `prove` checks it on the real shapes, and the lane's own hot code
hits a `Latch`, the only thing that may turn its verdict from armed to engaged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Exactness(StrEnum):
    """What a lane may change about the output."""

    EXACT = "exact"  # the same tokens, bit for bit
    EXACT_LAW = "exact_law"  # other tokens, the same distribution
    ROUNDING = "rounding"  # floating-point rounding of the same arithmetic
    LOSSY = "lossy"  # another distribution


class Stage(StrEnum):
    """When a lane is installed."""

    PROCESS = "process"  # before mlx.core is imported
    ENGINE = "engine"  # on the loaded model's parts


@dataclass(frozen=True)
class Decision:
    """Whether something is possible, and why (a code for machines, a sentence for people)."""

    ok: bool
    code: str
    reason: str


@dataclass(frozen=True)
class PackEvidence:
    """What the pack's files say, read without loading weights."""

    name: str
    family: str
    hidden_size: int
    vocab_size: int
    layers: int
    quantized_bits: int | None  # bits of the stored trunk weights, None = dense
    head: Decision  # whether an MTP head is present and fits this trunk
    draft_vocab_size: int | None  # rows of the frequency-ranked draft vocabulary, None = not shipped
    trimmable_cache: bool  # every layer's cache rolls back exactly by trimming
    head_dim: int | None = None  # width of one attention head, None = not known
    native: Decision | None = None  # whether the native library can run the trunk's layers; None = not asked


@dataclass(frozen=True)
class Evidence:
    """All that lanes may look at when they say whether they apply. Pure data, gathered once."""

    system: str  # platform.system()
    machine: str  # platform.machine()
    device: str  # "cpu" or "metal"
    mlx_loaded: bool  # mlx.core was in sys.modules when the evidence was gathered
    blas_forwarder: str | None  # path of the built forwarding library
    blas_forwarder_bound: bool  # this process already opened it before mlx.core
    blas_target: str | None  # path of the BLAS it would forward to
    threads: int  # engine.threads
    law: str  # the configured acceptance law
    depth: int  # draft.depth
    pack: PackEvidence
    native_library: str | None = None  # path of the built native library
    native_isa: str | None = None  # the instruction set that its kernels would run with here
    mlx_primitive: str | None = None  # path of the built MLX extension; the native library comes with it


@dataclass
class Latch:
    """Set by a lane's hot code. Counts calls since serving began; `first` is the Unix time of the first, in seconds."""

    count: int = 0
    first: float | None = None

    def hit(self) -> None:
        self.count += 1
        if self.first is None:
            self.first = time.time()

    def reset(self) -> None:
        """Forget what proofs and warm-up did: only served code may engage a lane."""
        self.count, self.first = 0, None


@dataclass(frozen=True)
class Installed:
    """A lane in place. `undo` restores exactly what was there before and may be called once."""

    undo: Callable[[], None]
    latch: Latch
    hot: Callable[..., Any] | None = None  # the callable that replaced the stock one, where there is one
    before: Any = None  # what stood in its place, for the proof to compare with
    latch_reader: Callable[[Latch], None] | None = None  # refreshes the latch from a counter of native code
    serves_for: tuple[str, ...] = ()  # lanes whose work this one's own code does, so that theirs may never run


@dataclass(frozen=True)
class Proof:
    """The result of a parity or effect probe on the real shapes. `figures` hold the measured numbers by name."""

    ok: bool
    reason: str
    figures: dict[str, float] = field(default_factory=dict)


class EngineParts(Protocol):
    """The seams that lanes may replace, each documented where it is built (`runtime/parts.py`)."""

    trunk: Any  # runtime.packs.contract.Trunk
    head: Any  # runtime.packs.contract.Head or None
    cache_factory: Callable[[], list[Any]]  # a new list of trunk caches, one a layer
    draft_scorer: Any  # kernels.draft.DraftScorer: hidden [1, H] -> (logits, ids)
    draft_rows: Any  # kernels.draft.DraftRows: (logits, ids, filter) -> kernels.rows.Rows
    draft_chain: Any  # kernels.draft.DraftChain, or None: drafts go step by step
    target_rows: Any  # kernels.rows.RowsFilter: logits [R, V] -> rows of the verifier
    verify: Any  # (target logits, drafts, law, ...) -> decisions; stock goes row by row
    law: Any  # runtime.acceptance.law.AcceptanceLaw
    draft_ids: Any  # [K] int32 array of the pack's draft vocabulary, or None
    depth_policy: Any  # (deepest depth, seeded) -> runtime.decode.depth.DepthPolicy of a request; stock is constant
    drafting: Any  # runtime.decode.draft.Drafting: what stands around the head's drafter; stock is nothing

    def probe_cycle(self, depth: int, how: Any, seed: int) -> Any:
        """A verify cycle on random rows of the real width, for proofs."""
        ...

    def probe_session(self, context: int, seed: int) -> Any:
        """A runtime.decode.session.Session that has read a random prompt and drafts with the head alone, for timing."""
        ...


class LaneSpec(Protocol):
    """One optimization. Implemented by a module-level frozen dataclass named `LANE` in `lanes/<name>.py`."""

    name: str
    summary: str
    exactness: Exactness
    stage: Stage
    requires: tuple[str, ...]
    excludes: tuple[str, ...]
    auto: bool  # the auto-arm may choose it; False = only an explicit True installs it

    def supports(self, evidence: Evidence) -> Decision: ...

    def install(self, parts: EngineParts | None, evidence: Evidence) -> Installed: ...

    def prove(self, installed: Installed, parts: EngineParts | None, evidence: Evidence) -> Proof: ...
