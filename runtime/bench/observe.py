"""One window as its file holds it: what was measured, what the machine was like, and whether it may be used."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mtrun.runtime.bench.plan import Slot
from mtrun.runtime.bench.split import timed_sessions
from mtrun.runtime.measure import machine
from mtrun.runtime.measure.digest import ids_digest
from mtrun.runtime.measure.figures import decode_speed

if TYPE_CHECKING:
    from mtrun.runtime.acceptance.law import AcceptanceLaw
    from mtrun.runtime.generator import MtpGenerator

SCHEMA = "mtrun.window/1"
FIGURES = (  # null in a window that was not measured
    "prompt_digest",
    "prompt_ids",
    "ids",
    "digest",
    "reason",
    "law",
    "counts",
    "notes",
    "prefilled",
    "prefill_seconds",
    "ttft_seconds",
    "decode_seconds",
    "decode_cpu_seconds",
    "wall_seconds",
    "cpu_seconds",
    "prefill_tok_s",
    "decode_tok_s",
    "cycle_ms",
    "token_ms",
    "split_ms",
    "rates",
    "nll",
    "memory",
    "verdicts",
    "shadow",
    "shadow_seconds",
)


@dataclass(frozen=True)
class Head:
    """What every window of a run says first."""

    kind: str
    plan_sha256: str
    session: int
    tokens: int

    def of(self, slot: Slot, setting: str | None, context: int | None) -> dict[str, Any]:
        """The fields that are known before a window is measured. `context` is the prompt's length in tokens."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "plan_sha256": self.plan_sha256,
            "cell": slot.cell,
            "setting": setting,
            "seed": slot.seed,
            "prompt": slot.prompt,
            "round": slot.round,
            "session": self.session,
            "warm_up": slot.round < 0,
            "request_seed": slot.request_seed,
            "context": context,
            "context_asked": slot.context,
            "tokens": self.tokens,
        }

    def unmeasured(self, slot: Slot, setting: str | None, **said: str) -> dict[str, Any]:
        """A window without figures: `refused` or `error` says why."""
        blank = dict.fromkeys(FIGURES)
        return {**self.of(slot, setting, slot.context), **blank, **_state(), "refused": None, "error": None, **said}


def observe(
    generator: MtpGenerator,
    prompt_ids: Sequence[int],
    seed: int,
    tokens: int,
    shadows: Mapping[str, AcceptanceLaw] | None = None,
) -> dict[str, Any]:
    """Measures a window and returns its figures as JSON types. Raises whatever decoding raises."""
    from mtrun.runtime.acceptance.counts import Counts
    from mtrun.runtime.acceptance.rates import rates
    from mtrun.runtime.measure.window import measure_ids

    _reset_peak()
    shadow = _watch(generator, shadows)
    try:
        found = measure_ids(generator, prompt_ids, seed, tokens)
    finally:
        if shadow is not None:
            shadow.undo()
    memory = _memory()
    found |= {
        "prompt_digest": ids_digest(prompt_ids),
        "prefill_tok_s": len(prompt_ids) / max(found["prefill_seconds"], 1e-9),
        "decode_tok_s": decode_speed(found),
        "split_ms": None,
        "rates": rates(Counts(**found["counts"])),
        "nll": None,
        "memory": memory,
        "shadow": shadow and shadow.report(),
        "shadow_seconds": shadow and shadow.seconds,
    }
    return {**{name: found[name] for name in FIGURES}, **_state(), "refused": None, "error": None}


def observe_split(
    generator: MtpGenerator, prompt_ids: Sequence[int], seed: int, tokens: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A window whose cycles are split into phases, and {synchronised, cycles, decode_seconds} of that split."""
    assert generator.decoder is not None
    with timed_sessions(generator.decoder) as clock:
        found = observe(generator, prompt_ids, seed, tokens)
    found["split_ms"] = clock.split_ms(found["decode_seconds"])
    how = {"synchronised": clock.synchronised, "cycles": clock.cycles, "decode_seconds": found["decode_seconds"]}
    return found, how


def score_nll(scorer: MtpGenerator, prompt_ids: Sequence[int], ids: Sequence[int]) -> float | None:
    """Nats a token of a text under the trunk of `scorer`; None where it is not finite."""
    from mtrun.runtime.measure.window import score

    found = score(scorer, prompt_ids, ids)
    return found if math.isfinite(found) else None


def refusal(found: Mapping[str, Any], tokens: int, setting: Mapping[str, Any]) -> str | None:
    """Why a window may not be used, as one sentence: it is not what was asked for."""
    from mtrun.runtime.acceptance.counts import Counts

    asked = {lane["lane"]: lane["state"] for lane in setting["audit"]["lanes"]}
    states = {lane: state for lane, (state, _) in found["verdicts"].items()}
    changed = [lane for lane in asked if (asked[lane] == "declined") != (states.get(lane, "declined") == "declined")]
    law, wanted = found["law"], setting["law"]
    chunk = setting["config"]["engine"]["prefill_chunk"]
    if len(found["ids"]) != tokens:
        return f"{len(found['ids'])} tokens instead of {tokens}"
    if changed:
        return f"the verdict of {', '.join(changed)} is not the one the cell started with"
    if (law["law"], law["rule"], law["parameters"]) != (wanted["law"], wanted["rule"], wanted["parameters"]):
        return f"the law {law['law']} decided, not {wanted['law']}"
    if found["prefilled"][0] > chunk or found["prefilled"][-1] != len(found["prompt_ids"]):
        return "the prefill was not cold: part of the prompt was not read"
    if problems := Counts(**found["counts"]).identities():
        return problems[0]
    return None


def _state() -> dict[str, Any]:
    return {"load": machine.load(), "cpu_mhz": machine.frequency(), "temperature": machine.temperature()}


def _watch(generator: MtpGenerator, laws: Mapping[str, AcceptanceLaw] | None) -> Any:
    if not laws:
        return None
    from mtrun.runtime.decode.shadow import watch

    assert generator.decoder is not None
    return watch(generator.decoder.parts, laws)


def _reset_peak() -> None:
    if "mlx.core" in sys.modules:
        import mlx.core as mx

        mx.reset_peak_memory()


def _memory() -> dict[str, int | None]:
    """Bytes: resident now, the process's largest so far (the run's cells share it), MLX's largest in this window."""
    import psutil

    mlx_peak = None
    if "mlx.core" in sys.modules:
        import mlx.core as mx

        mlx_peak = mx.get_peak_memory()
    resident, peak = psutil.Process().memory_info().rss, _rss_peak()
    # Linux adds to the largest size in batches, so that it may lag behind the present one.
    return {
        "rss_bytes": resident,
        "rss_peak_bytes": peak and max(peak, resident),
        "mlx_peak_bytes": mlx_peak,
    }


def _rss_peak() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
