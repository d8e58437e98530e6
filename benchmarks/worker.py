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
from typing import TYPE_CHECKING, Any, TextIO

from mtrun.runtime.measure.setting import audit, configuration, pack_identity

if TYPE_CHECKING:
    from mtrun.runtime.generator import MtpGenerator


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
            described[name] = {
                "overrides": list(words),
                **configuration(generator.prepared),
                "audit_before": audit(generator),
            }
        assert first is not None, "a side has at least one cell"
        return {"cells": described, "pack": pack_identity(first.prepared.pack)}

    def window(self, cell: str, prompt: str, seed: int, tokens: int) -> dict[str, Any]:
        from mtrun.runtime.measure.window import measure

        return measure(self.generators[cell], prompt, seed, tokens)

    def score(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> dict[str, Any]:
        from mtrun.runtime.measure.window import score

        return {"nll": score(next(iter(self.generators.values())), prompt_ids, ids)}

    def close(self) -> dict[str, Any]:
        """The audits after the last window of each cell; then variants go before the weights they share."""
        audits = {name: audit(generator) for name, generator in self.generators.items()}
        for generator in reversed(self.generators.values()):
            generator.close()
        self.generators.clear()
        return {"audits": audits}


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
