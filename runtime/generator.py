"""What runs on the inference thread: loads a prepared run, arms its lanes, and decodes requests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mtrun.lanes.contract import Stage
from mtrun.runtime import memory
from mtrun.runtime.arming.install import Installation
from mtrun.runtime.audit import require
from mtrun.runtime.errors import ConfigurationError
from mtrun.runtime.preparation import Preparation
from mtrun.runtime.requests import Event, GenerationRequest
from mtrun.runtime.verdicts import State, VerdictRegistry

if TYPE_CHECKING:
    from mtrun.runtime.acceptance.law import AcceptanceLaw
    from mtrun.runtime.decode.decoder import Decoder
    from mtrun.runtime.packs.contract import Loaded


class MtpGenerator:
    """Implements `runtime.worker.Generator`."""

    def __init__(self, run: Preparation) -> None:
        self.prepared = run
        self.registry = VerdictRegistry(run.orders.lanes)
        self.installation = Installation(run.orders, self.registry)
        self.decoder: Decoder | None = None  # None until loaded
        self._loaded: Loaded | None = None
        self._owns_thread = True  # a variant leaves its thread's streams to the generator that loaded

    def load(self) -> None:
        """Process lanes, weights, engine lanes, in this order. Raises what start-up must stop for."""
        self._load(None)

    def variant(self, run: Preparation) -> MtpGenerator:
        """Another run of the same pack over the weights loaded here: its own law, parts, lanes and verdicts.

        For comparisons in one process. Call it on the thread of `load`, run it there too, and close it before this one.
        Raises ConfigurationError when `run` needs another pack, thread count or process lane, and what `load` raises.
        """
        assert self._loaded is not None, "load comes before variant"
        self._check_shares_process(run)
        other = MtpGenerator(run)
        other._owns_thread = False
        other._load(self._loaded)
        return other

    def _check_shares_process(self, run: Preparation) -> None:
        """A process lane works for every engine of the process, whatever one of them would say of it."""
        if run.pack.folder != self.prepared.pack.folder:
            raise ConfigurationError("a variant shares the loaded weights: give it the same pack")
        if run.config.engine.threads != self.prepared.config.engine.threads:
            raise ConfigurationError("engine.threads holds for the whole process: give the variant the same number")
        for verdict in self.registry.verdicts():
            lane, armed = verdict.lane, verdict.state is not State.DECLINED
            if run.orders.lanes[lane].stage is Stage.PROCESS and run.orders.wanted[lane][0] != armed:
                have = f"lanes.{lane}={str(armed).lower()}"
                raise ConfigurationError(f"lane {lane} holds for the whole process: give the variant {have}")

    def _load(self, shared: Loaded | None) -> None:
        self.installation.arm(Stage.PROCESS)
        self._loaded = shared or self.prepared.family.load(self.prepared.pack)
        self.decoder = self._build(self._loaded)
        self.installation.arm(Stage.ENGINE, self.decoder.parts)
        require(self.registry.verdicts(), self.prepared.config.audit.require)
        self.registry.start_serving()

    def _build(self, loaded: Loaded) -> Decoder:
        from mtrun.runtime.decode.decoder import Decoder, DecodeSettings
        from mtrun.runtime.parts import stock_parts

        config, tokenizer = self.prepared.config, self.prepared.tokenizer
        parts = stock_parts(loaded.trunk, loaded.head, loaded.draft_ids, configured_law(self.prepared))
        settings = DecodeSettings(
            depth=config.draft.depth,
            prefill_chunk=config.engine.prefill_chunk,
            context_limit=self.prepared.context_limit,
            eos=frozenset(tokenizer.eos_ids),
            draft_temperature=config.draft.temperature,
            draft_top_p=config.draft.top_p,
            draft_top_k=config.draft.top_k,
        )
        return Decoder(parts, settings, tokenizer.stream)

    def run(self, request: GenerationRequest, cancelled: Callable[[], bool]) -> Iterator[Event]:
        """See `runtime.worker.Generator`. Raises RequestError and CapacityError before prefill."""
        assert self.decoder is not None, "load comes before run"
        config = self.prepared.config
        prompt = len(request.prompt_ids)
        room = max(self.prepared.context_limit - prompt, 0)
        reply = room if request.max_tokens is None else min(request.max_tokens, room)
        limit = config.engine.memory_limit_bytes
        memory.check_request(
            self.prepared.footprint, limit, prompt, reply, config.engine.prefill_chunk, config.draft.depth
        )
        return self.decoder.run(request, cancelled)

    def close(self, keep_streams: bool = False) -> None:
        """Takes the lanes out, lets go of the weights and ends this thread's MLX streams.

        MLX aborts the process at exit when a stream's own thread outlives the thread that made it. `keep_streams`: the
        caller goes on with MLX on this thread.
        """
        self.installation.undo()
        self.decoder = self._loaded = None
        if self._owns_thread and not keep_streams and "mlx.core" in sys.modules:
            import mlx.core as mx

            mx.clear_streams()


def configured_law(run: Preparation) -> AcceptanceLaw:
    """The law that the configuration names, with its knobs. A law reads only its own."""
    from mtrun.runtime.acceptance.table import build_law

    config = run.config
    law = str(config.acceptance.law.value)
    knobs: dict[str, dict] = {
        "cascade": {"rule": config.cascade.rule and str(config.cascade.rule.value), "alpha": config.cascade.alpha},
        "typical": {"threshold": config.typical.threshold, "eps": config.typical.eps},
        "typical-pi": {"threshold": config.typical.threshold, "eps": config.typical.eps},
        "synthetic": {"rate": config.synthetic.rate},
    }
    return build_law(law, **knobs.get(law, {}))
