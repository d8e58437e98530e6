"""The exact law with depths chosen by cost against plain decoding, prompt by prompt.

    python -m benchmarks.depth --out docs/results/depth.json [words ...]

Each prompt is decoded by each cell in turn, every second round backwards, for a fixed number of tokens without a seed
of its own (a seed keeps the configured depth); what is drawn is fixed by the round. A prompt's figure is the ratio of
median times a token over its rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.verdicts import verdicts_of
from mtrun.runtime.measure.code import code_identity
from mtrun.runtime.measure.machine import session
from mtrun.runtime.measure.setting import sampling_of
from mtrun.runtime.measure.stats import t_interval

CELLS = {
    "plain": ("profile=turbo", "draft.depth=0"),
    "exact, chosen depth": ("profile=turbo",),
    "exact, depth 1": ("profile=turbo", "draft.depth=1", "lanes.cost_depth=false"),
    "exact, depth 3": ("profile=turbo", "lanes.cost_depth=false"),
    "tokenv3 .95, depth 3": ("profile=cascade-tokenv3",),
}
PROMPTS = [Path(__file__).parent / name for name in ("heldout.txt", "freeform.txt")]  # in this order


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.depth", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="configuration words for every cell")
    parser.add_argument("--out", type=Path, default=Path("outputs/depth.json"))
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--show", type=Path, help="print the table of a receipt and measure nothing")
    given = parser.parse_args(arguments)
    if given.show:
        print(table(json.loads(given.show.read_text(encoding="utf-8"))))
        return 0
    receipt = measure(given)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")
    print(table(receipt))
    return 0


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """All windows of all cells, interleaved."""
    from mtrun.runtime.config.compose import compose
    from mtrun.runtime.generator import MtpGenerator
    from mtrun.runtime.preparation import prepare

    runs = {name: prepare(compose([*words, *given.words])) for name, words in CELLS.items()}
    names = list(runs)
    first = MtpGenerator(runs[names[0]])
    first.load()
    cells = {names[0]: first} | {name: first.variant(runs[name]) for name in names[1:]}
    lines = [line for path in PROMPTS for line in path.read_text(encoding="utf-8").splitlines()]
    prompts = [line for line in lines if line.strip()][: given.prompts]
    windows = []
    for number in range(-1, given.rounds):  # one round warms up
        for index, prompt in enumerate(prompts if number >= 0 else prompts[:2]):
            for name in names if (number + index) % 2 else names[::-1]:
                found = _window(cells[name], prompt, given.tokens, 1000 * max(number, 0) + index)
                if number >= 0:
                    windows.append({"cell": name, "prompt": index, "round": number, **found})
    receipt = {
        "schema": "mtrun.depth/1",
        "code": code_identity(),
        "session": session(),
        "plan": {"tokens": given.tokens, "rounds": given.rounds, "prompts": len(prompts), "words": given.words},
        "verdicts": {name: verdicts_of(cell.registry) for name, cell in cells.items()},
        "windows": windows,
    }
    for cell in reversed(cells.values()):
        cell.close()
    return receipt


def _window(generator: Any, prompt: str, tokens: int, draws: int) -> dict[str, Any]:
    """One reply: seconds a token, and how it was drafted. `draws` fixes what is sampled without being the request's
    seed."""
    import time
    from unittest.mock import patch

    from mtrun.runtime.requests import Finished, GenerationRequest

    sampling = replace(sampling_of(generator.prepared, 0), seed=None)
    ids = tuple(generator.prepared.tokenizer.encode_chat([{"role": "user", "content": prompt}]))
    request = GenerationRequest("depth", ids, sampling, tokens, ignore_eos=True)
    with patch("mtrun.runtime.decode.decoder.fresh_seed", lambda: draws):
        cpu = time.process_time()
        *_, end = generator.run(request, lambda: False)
        cpu = time.process_time() - cpu
    assert isinstance(end, Finished)
    counts = end.counts
    return {
        "seconds_a_token": end.decode_seconds / (end.completion_tokens - 1),
        "wall_to_cpu": (end.decode_seconds + end.prefill_seconds) / cpu,
        "tokens_a_cycle": (end.completion_tokens - 1) / counts.verify_calls,
        "mean_depth": counts.drafted / counts.verify_calls,
        "plain_share": 1 - counts.cycles / counts.verify_calls,
    }


def table(receipt: dict[str, Any]) -> str:
    """The receipt as Markdown: each cell against plain decoding over all prompts, and its worst and best prompt."""
    lines = [
        "| cell | tok/s, median | to plain, mean of prompts [95 %] | worst | best | tokens/cycle | mean depth |",
        "|---|---|---|---|---|---|---|",
    ]
    prompts = range(receipt["plan"]["prompts"])
    plain = _by_prompt(receipt, "plain", "seconds_a_token", prompts)
    for name in CELLS:
        mine = _by_prompt(receipt, name, "seconds_a_token", prompts)
        ratios = [plain[i] / mine[i] for i in prompts]
        mean = t_interval(ratios)
        assert mean is not None
        around = "-" if name == "plain" or mean.low is None else f"{mean.value:.2f} [{mean.low:.2f}, {mean.high:.2f}]"
        per_cycle = median(_by_prompt(receipt, name, "tokens_a_cycle", prompts))
        depth = median(_by_prompt(receipt, name, "mean_depth", prompts))
        lines.append(
            f"| {name} | {1 / median(mine):.0f} | {around} | {min(ratios):.2f} | {max(ratios):.2f} | {per_cycle:.2f} | "
            f"{depth:.2f} |"
        )
    busy = [window["wall_to_cpu"] for window in receipt["windows"]]
    lines += ["", f"{len(busy)} windows, wall / CPU median {median(busy):.2f}, largest {max(busy):.2f}."]
    return "\n".join(lines)


def _by_prompt(receipt: dict[str, Any], cell: str, key: str, prompts: range) -> list[float]:
    return [
        median(w[key] for w in receipt["windows"] if w["cell"] == cell and w["prompt"] == prompt) for prompt in prompts
    ]


if __name__ == "__main__":
    sys.exit(main())
