"""The process of one side: loads the pack once, arms every cell over the same weights, and measures what it is told.

It reads one JSON object a line from standard input and answers each with one: `open` {cells: {name: words}}, `window`
{cell, prompt, seed, tokens}, `score` {prompt_ids, ids}, `close`. A refused command is answered {"error": sentence}.
Everything happens on the main thread: MLX arrays belong to the thread that made them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from mtrun.runtime.generator import MtpGenerator
    from mtrun.runtime.packs.reader import PackDescription


class Side:
    """The generators of one process, by cell. The first one owns the weights."""

    def __init__(self) -> None:
        self.generators: dict[str, MtpGenerator] = {}

    def open(self, cells: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Composes, arms and proves every cell. Raises what start-up must stop for."""
        from mtrun.runtime import compose
        from mtrun.runtime.generator import MtpGenerator
        from mtrun.runtime.preparation import prepare

        described: dict[str, Any] = {}
        first: MtpGenerator | None = None
        for name, words in cells.items():
            run = prepare(compose(list(words)))
            if first is None:
                first = generator = MtpGenerator(run)
                generator.load()
            else:
                generator = first.variant(run)
            self.generators[name] = generator
            described[name] = {"overrides": list(words), **_configuration(generator), "audit_before": audit(generator)}
        assert first is not None, "a side has at least one cell"
        return {"cells": described, "pack": pack_identity(first.prepared.pack)}

    def window(self, cell: str, prompt: str, seed: int, tokens: int) -> dict[str, Any]:
        from benchmarks.window import measure

        return measure(self.generators[cell], prompt, seed, tokens)

    def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> dict[str, Any]:
        from benchmarks.window import score

        return {"nll": score(next(iter(self.generators.values())), prompt_ids, ids)}

    def close(self) -> dict[str, Any]:
        """The audits after the last window of each cell; then variants go before the weights they share."""
        audits = {name: audit(generator) for name, generator in self.generators.items()}
        for generator in reversed(self.generators.values()):
            generator.close()
        self.generators.clear()
        return {"audits": audits}


def audit(generator: MtpGenerator) -> dict[str, Any]:
    """The audit object with the law in force."""
    assert generator.decoder is not None
    law = generator.decoder.parts.law
    shown = {
        "law": law.name,
        "rule": law.rule,
        "parameters": dict(law.parameters),
        "distribution_exact": law.distribution_exact,
    }
    return generator.registry.to_json(generator.prepared.evidence, shown)


def pack_identity(pack: PackDescription) -> dict[str, Any]:
    """What was measured: names and checksums of the pack's manifest; nulls for a folder that has none."""
    manifest = pack.manifest
    return {
        "name": pack.name,
        "family": pack.family,
        "trunk_identity": manifest and manifest.trunk_identity,
        "provenance": manifest and dict(manifest.provenance),
        "head": {"ok": pack.head.ok, "reason": pack.head.reason, "draft_vocab_size": pack.draft_vocab_size},
        "sha256": manifest and {name: entry.sha256 for name, entry in sorted(manifest.files.items())},
    }


def _configuration(generator: MtpGenerator) -> dict[str, Any]:
    from omegaconf import OmegaConf

    from benchmarks.cells import sha256_of
    from benchmarks.window import sampling_of
    from mtrun.runtime.config.why import without_secrets

    composed = generator.prepared.composed
    config = OmegaConf.to_container(without_secrets(composed.config), resolve=True, enum_to_str=True)
    return {
        "config": config,
        "config_sha256": sha256_of(config),
        "sampler": asdict(sampling_of(generator.prepared, 0)) | {"seed": None},
        "provenance": {key: [found.source, found.text] for key, found in sorted(composed.provenance.items())},
        "warnings": list(composed.warnings),
    }


def serve(commands: TextIO, replies: TextIO) -> None:
    """Answers commands until `close` or the end of the input."""
    from mtrun.runtime.errors import MtrunError

    side = Side()
    for line in commands:
        words = json.loads(line)
        name = words.pop("op")
        try:
            answer = getattr(side, name)(**words)
        except MtrunError as error:
            answer = {"error": str(error)}
        replies.write(json.dumps(answer, allow_nan=False) + "\n")
        replies.flush()
        if name == "close":
            return


def main() -> None:
    # Whatever a library prints goes to standard error, so that the replies stay one JSON object a line.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with replies:
        serve(sys.stdin, replies)


if __name__ == "__main__":
    main()
