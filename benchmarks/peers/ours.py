"""mtrun itself, one cell: the words of a configuration, composed, armed and proved as at start-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks.peers.base import AbsentError, Figure, Reply, Stopwatch, row_figures

if TYPE_CHECKING:
    from mtrun.runtime.generator import MtpGenerator


class Peer:
    """Implements `base.Runtime`. Settings: `overrides`, as typed after `mtrun`."""

    def __init__(self) -> None:
        self.generator: MtpGenerator | None = None

    def open(self, settings: dict[str, Any]) -> dict[str, Any]:
        """See `base.Runtime`."""
        from mtrun.runtime import compose
        from mtrun.runtime.errors import MtrunError
        from mtrun.runtime.generator import MtpGenerator
        from mtrun.runtime.measure.setting import audit, pack_identity, sampling_of
        from mtrun.runtime.preparation import prepare

        words = [*settings["overrides"], f"engine.threads={settings['threads']}"]
        try:
            run = prepare(compose(words))
            generator = MtpGenerator(run)
            generator.load()
        except MtrunError as error:
            raise AbsentError(str(error)) from error
        self.generator = generator
        sampler = sampling_of(run, 0)
        told = audit(generator)
        how = "greedy" if sampler.temperature == 0 else f"temperature {sampler.temperature:g}, top-p {sampler.top_p:g}"
        return {
            "what": f"mtrun {' '.join(words)}; {how}",
            "version": told["versions"]["mtrun"],
            "threads": settings["threads"],
            "busy_threads": 1,  # only wide products are shared out
            "sampler": asdict(sampler) | {"seed": None},
            "audit": told,
            "pack": pack_identity(run.pack),
        }

    def prefill(self, ids: Sequence[int]) -> Reply:
        """See `base.Runtime`."""
        reply = self._run(ids, 1, 0)
        return {"figures": {"prefill": reply["prefill"]}}

    def decode(self, ids: Sequence[int], tokens: int, seed: int) -> Reply:
        """See `base.Runtime`; also counters and verdicts of the window."""
        reply = self._run(ids, tokens, seed)
        figure = reply.pop("decode")
        return {**reply, "figures": {"decode": {**figure, "tokens": tokens - 1}}}

    def _run(self, ids: Sequence[int], tokens: int, seed: int) -> dict[str, Any]:
        from mtrun.runtime.measure.setting import sampling_of
        from mtrun.runtime.requests import Chunk, Finished, GenerationRequest, Prefill

        generator = self.generator
        assert generator is not None, "open comes before a window"
        sampling = sampling_of(generator.prepared, seed)
        request = GenerationRequest("peers", tuple(ids), sampling, tokens, ignore_eos=True, top_logprobs=None)
        generator.registry.start_serving()
        made: list[int] = []
        prefill: Figure = {}
        finished: Finished | None = None
        watch = reading = Stopwatch()
        for event in generator.run(request, lambda: False):
            if isinstance(event, Prefill):
                prefill, watch = reading.figure(len(ids)), Stopwatch()
            elif isinstance(event, Chunk):
                made += event.token_ids
            elif isinstance(event, Finished):
                finished = event
        decode = watch.figure(tokens)
        assert finished is not None, "decoding ended without a Finished event"
        if len(made) != tokens:
            raise RuntimeError(f"{len(made)} tokens instead of {tokens}")
        return {
            "prefill": prefill,
            "decode": decode,
            "ids": made,
            "law": asdict(finished.law),
            "counts": asdict(finished.counts),
            "notes": list(finished.notes),
            "verdicts": {one.lane: [one.state.value, one.engaged_count] for one in generator.registry.verdicts()},
        }

    def rows(self, ids: Sequence[int], widths: Sequence[int], repeats: int) -> Reply:
        """See `base.Runtime`: the trunk's forward as a cycle calls it, whatever lanes stand in it."""
        import mlx.core as mx
        import numpy as np

        assert self.generator is not None
        assert self.generator.decoder is not None
        parts = self.generator.decoder.parts
        module = getattr(parts.trunk, "xp", mx)
        caches = parts.cache_factory()

        def feed(tokens: Sequence[int], logits: Any) -> None:
            out = parts.trunk.forward(module.array([list(tokens)], dtype=module.int32), caches, logits)
            np.asarray(out.logits)

        def drop(width: int) -> None:
            for cache in caches:
                cache.trim(width)

        feed(ids, "last")
        return {"figures": row_figures(lambda width: feed(ids[:width], "all"), drop, widths, repeats)}

    def close(self) -> None:
        """See `base.Runtime`."""
        if self.generator is not None:
            self.generator.close()
        self.generator = None
