"""What a native step costs and how near it is to MLX: widths, held-out text, long contexts.

    python -m benchmarks.native --out docs/results/native.json [engine.threads=2 ...]
    python -m benchmarks.native --show docs/results/native.json

Widths are timed in turn, round after round, as wall and CPU time of the process; medians count. Variants that round
activations or the lm_head are armed beside the default one over the same weights. Words go to every configuration.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.verdicts import verdicts_of
from mtrun.runtime.measure.code import code_identity
from mtrun.runtime.measure.machine import session, versions

WIDTHS = (1, 2, 3, 4, 5, 6, 8)
CONTEXT = 128
TEXT, PROMPTS = Path(__file__).parent / "heldout.txt", Path(__file__).parent / "freeform.txt"
VARIANTS = {  # name -> words
    "default": (),
    "8-bit activations": ("lanes.cpu_int8=true",),
    "4-bit lm_head": ("lanes.cpu_head_q4=true",),
    "both": ("lanes.cpu_int8=true", "lanes.cpu_head_q4=true"),
}
LENGTHS = (512, 2048, 4096, 8064)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 measured, 1 the native lane is not armed here."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.native", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="configuration words for every variant")
    parser.add_argument("--out", type=Path, default=Path("outputs/native.json"))
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--lengths", type=int, nargs="*", default=list(LENGTHS))
    parser.add_argument("--greedy-tokens", type=int, default=200)
    parser.add_argument("--show", type=Path, help="print the tables of a receipt and measure nothing")
    given = parser.parse_args(arguments)
    if given.show:
        print(tables(json.loads(given.show.read_text(encoding="utf-8"))))
        return 0
    receipt = {"schema": "mtrun.native/1", "code": code_identity(), "session": session(), "versions": versions()}
    generators = _armed(given.words)
    if not hasattr(generators["default"].decoder.parts.trunk, "engine"):
        print("benchmarks.native: lane cpu_layer is not armed here: see mtrun audit", file=sys.stderr)
        return 1
    receipt["verdicts"] = {name: verdicts_of(each.registry) for name, each in generators.items()}
    receipt["widths"] = widths(generators, given.rounds)
    receipt["parity"] = parity(generators)
    receipt["greedy"] = greedy(generators["default"], given)
    receipt["contexts"] = contexts(generators["default"], given.lengths)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")
    print(tables(receipt))
    for each in reversed(generators.values()):
        each.close()
    return 0


def _armed(words: Sequence[str]) -> dict[str, Any]:
    from mtrun.runtime.config.compose import compose
    from mtrun.runtime.generator import MtpGenerator
    from mtrun.runtime.preparation import prepare

    runs = {name: prepare(compose([*words, *extra])) for name, extra in VARIANTS.items()}
    first = MtpGenerator(runs["default"])
    first.load()
    return {"default": first} | {name: first.variant(run) for name, run in runs.items() if name != "default"}


def widths(generators: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Variant -> width -> median milliseconds of wall and CPU time of one forward with all logits, and n."""
    import numpy as np

    prompt = _ids(generators["default"], CONTEXT)
    steps = {}
    for name, generator in generators.items():
        trunk = generator.decoder.parts.trunk
        caches = trunk.new_caches()
        trunk.forward(prompt, caches, "none")
        steps[name] = (trunk, caches)
    times: dict[tuple[str, int], list[tuple[float, float]]] = {}
    order = [(name, width) for name in steps for width in WIDTHS]
    for number in range(-2, rounds):  # two rounds warm up
        for name, width in order if number % 2 else order[::-1]:
            trunk, caches = steps[name]
            spent = _timed(lambda t=trunk, c=caches, w=width: t.forward(prompt[:, :w], c, "all"))
            caches[0].trim(width)
            if number >= 0:
                times.setdefault((name, width), []).append(spent)
    return {
        name: {
            str(width): {
                "wall_ms": 1e3 * median(wall for wall, _ in times[name, width]),
                "cpu_ms": 1e3 * median(cpu for _, cpu in times[name, width]),
                "best_ms": 1e3 * float(np.min([wall for wall, _ in times[name, width]])),
                "n": rounds,
            }
            for width in WIDTHS
        }
        for name in steps
    }


def parity(generators: dict[str, Any]) -> dict[str, Any]:
    """Variant -> KL and total variation of its rows from MLX's float32 rows over held-out text."""
    import mlx.core as mx
    import numpy as np

    first = generators["default"]
    stock = first._loaded.trunk
    ids = _ids(first, 256)
    wanted = _log_rows(np.array(stock.forward(mx.array(ids), stock.new_caches(), "all").logits))
    found = {}
    for name, generator in generators.items():
        trunk = generator.decoder.parts.trunk
        rows = _log_rows(trunk.forward(ids, trunk.new_caches(), "all").logits)
        kl = np.sum(np.exp(wanted) * (wanted - rows), axis=-1)
        variation = np.sum(np.maximum(np.exp(wanted) - np.exp(rows), 0), axis=-1)
        found[name] = {
            "rows": int(ids.size),
            "mean_kl": float(kl.mean()),
            "max_kl": float(kl.max()),
            "mean_total_variation": float(variation.mean()),
            "argmax_equal": float((wanted.argmax(-1) == rows.argmax(-1)).mean()),
        }
    return found


def greedy(generator: Any, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Greedy replies of the native and the MLX path; where they part, the gap of MLX's two likeliest tokens."""
    import mlx.core as mx
    import numpy as np

    from mtrun.runtime.config.compose import compose
    from mtrun.runtime.preparation import prepare

    words = [*given.words, "lanes.cpu_layer=false", "draft.depth=0"]
    stock, rows = generator.variant(prepare(compose(words))), []
    prompts = [line for line in PROMPTS.read_text(encoding="utf-8").splitlines() if line.strip()][:6]
    for prompt in prompts:
        ids = generator.prepared.tokenizer.encode_chat([{"role": "user", "content": prompt}])
        ours, theirs = (_greedy_reply(each, ids, given.greedy_tokens) for each in (generator, stock))
        row: dict[str, Any] = {"prompt": prompt, "tokens": len(theirs), "equal": ours == theirs}
        if ours != theirs:
            at = next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
            trunk = stock.decoder.parts.trunk
            read = mx.array([[*ids, *theirs[:at]]], dtype=mx.int32)
            top = np.sort(np.array(trunk.forward(read, trunk.new_caches(), "last").logits)[0])[-2:]
            row |= {"left_at": at, "gap": float(top[1] - top[0])}
        rows.append(row)
    stock.close()
    return rows


def _greedy_reply(generator: Any, ids: Sequence[int], tokens: int) -> list[int]:
    from mtrun.runtime.requests import Chunk, GenerationRequest, Sampling

    request = GenerationRequest("greedy", tuple(ids), Sampling(temperature=0.0), tokens, ignore_eos=True)
    return [
        token
        for event in generator.run(request, lambda: False)
        if isinstance(event, Chunk)
        for token in event.token_ids
    ]


def contexts(generator: Any, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Prefill and decode speed at growing contexts, and memory; a length over the pack's limit says so in its row."""
    trunk = generator.decoder.parts.trunk
    rows = []
    for length in lengths:
        if length + 16 > trunk.context_limit:
            rows.append({"tokens": length, "refused": f"the pack's limit is {trunk.context_limit}"})
            continue
        caches, ids = trunk.new_caches(), _ids(generator, length)
        wall, cpu = _timed(lambda c=caches, i=ids: trunk.forward(i, c, "last"))
        steps = []
        for _ in range(9):
            steps.append(_timed(lambda c=caches, i=ids: trunk.forward(i[:, :1], c, "all")))
            caches[0].trim(1)
        rows.append(
            {
                "tokens": length,
                "prefill_tok_s": length / wall,
                "prefill_cpu_tok_s": length / cpu,
                "decode_ms": 1e3 * median(w for w, _ in steps),
                "decode_cpu_ms": 1e3 * median(c for _, c in steps),
                "cache_mb": caches[0].nbytes / 1e6,
                "weights_mb": trunk.engine.arena().used / 1e6,
                "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
            }
        )
    return rows


def _ids(generator: Any, count: int) -> Any:
    """[1, count] token ids of the held-out text, repeated where it is shorter."""
    import numpy as np

    ids = generator.prepared.tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    return np.resize(np.array(ids, dtype=np.int32), count)[None]


def _timed(step: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of wall and of CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - wall, time.process_time() - cpu


def _log_rows(logits: Any) -> Any:
    """[R, V] float64 log-probabilities."""
    import numpy as np

    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def tables(receipt: dict[str, Any]) -> str:
    """The receipt as Markdown."""
    lines = [
        "| variant | " + " | ".join(f"{w} rows, ms" for w in WIDTHS) + " | 4 / 1 | wall / CPU | KL | D_TV | argmax |"
    ]
    lines.append("|" + "---|" * (len(WIDTHS) + 6))
    for name, cells in receipt["widths"].items():
        near = receipt["parity"][name]
        times = " | ".join(f"{cells[str(w)]['wall_ms']:.2f}" for w in WIDTHS)
        ratio = cells["4"]["wall_ms"] / cells["1"]["wall_ms"]
        busy = max(cell["wall_ms"] / cell["cpu_ms"] for cell in cells.values())
        lines.append(
            f"| {name} | {times} | {ratio:.2f} | {busy:.2f} | {near['mean_kl']:.1e} | "
            f"{near['mean_total_variation']:.1e} | {near['argmax_equal']:.3f} |"
        )
    equal = sum(row["equal"] for row in receipt["greedy"])
    lines += ["", f"Greedy replies equal to MLX's: {equal} of {len(receipt['greedy'])}."]
    lines += [
        f"Left at token {row['left_at']}, where MLX's two likeliest are {row['gap']:.1e} apart: {row['prompt'][:60]}"
        for row in receipt["greedy"]
        if not row["equal"]
    ]
    lines += [
        "",
        "| context | prefill tok/s | decode ms | cache MB | weights MB | peak RSS MB |",
        "|---|---|---|---|---|---|",
    ]
    for row in receipt["contexts"]:
        if "refused" in row:
            lines.append(f"| {row['tokens']} | {row['refused']} | | | | |")
        else:
            lines.append(
                f"| {row['tokens']} | {row['prefill_tok_s']:.0f} | {row['decode_ms']:.2f} | {row['cache_mb']:.0f} | "
                f"{row['weights_mb']:.0f} | {row['peak_rss_mb']:.0f} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
