"""One run of free text: prompts decoded to a fixed length under a law, each text read once by the target and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mtrun.runtime.evaluate.folder import SUMMARY
from mtrun.runtime.evaluate.score import SCHEMA
from mtrun.runtime.evaluate.text_folder import KIND, Plan, TextFolder
from mtrun.runtime.evaluate.text_measures import DEFINITIONS, figure, interval, measures, pooled_rates, read_text
from mtrun.runtime.measure.digest import ids_digest
from mtrun.runtime.measure.store import write_json

if TYPE_CHECKING:
    from mtrun.runtime.forge.bar import Advance
    from mtrun.runtime.generator import MtpGenerator


def text_line(generator: MtpGenerator, plan: Plan, prompt: int, seed: int) -> dict[str, Any]:
    """Decodes one text and reads it with the run's own trunk; JSON types, times in seconds."""
    from mtrun.runtime.evaluate.answering import request_seed
    from mtrun.runtime.measure.setting import sampling_of
    from mtrun.runtime.measure.window import measure

    asked = request_seed(seed, prompt)
    found = measure(generator, plan.prompts[prompt], asked, plan.tokens)
    assert generator.decoder is not None
    sampling = sampling_of(generator.prepared, asked)
    reading = read_text(generator.decoder.parts.trunk, found["prompt_ids"], found["ids"], sampling)
    kept = ("ids", "digest", "reason", "counts", "law", "notes", "prefill_seconds", "decode_seconds", "wall_seconds")
    return {
        "prompt": prompt,
        "seed": seed,
        "request_seed": asked,
        "prompt_tokens": len(found["prompt_ids"]),
        "prompt_digest": ids_digest(found["prompt_ids"]),
        "output_tokens": len(found["ids"]),
        **{name: found[name] for name in kept},
        **measures(found["ids"], found["counts"], reading),
    }


def decode(
    generator: MtpGenerator,
    folder: TextFolder,
    cell: str,
    command: Sequence[str],
    advance: Advance,
    stop: Callable[[], bool],
) -> bool:
    """Decodes what `folder` lacks; False where `stop` ended it early. Raises ConfigurationError for another setting."""
    from mtrun.runtime.evaluate.cells import label
    from mtrun.runtime.measure.setting import law_of, setting_of

    setting = setting_of(generator, generator.prepared.composed.overrides)
    folder.begin(cell, label(law_of(generator)), setting, command)
    total, engaged = len(folder.plan.texts), dict[str, int]()
    try:
        for prompt, seed in folder.missing:
            if stop():
                return False
            folder.keep(text_line(generator, folder.plan, prompt, seed))
            # `measure` forgets the lanes' counts before each text, so they are summed here.
            for one in generator.registry.verdicts():
                engaged[one.lane] = engaged.get(one.lane, 0) + one.engaged_count
            advance(len(folder.lines) / total, _note(folder.lines.values()))
        return True
    finally:
        final = {one.lane: one.state.value for one in generator.registry.verdicts()}
        folder.end({lane: ["engaged" if engaged.get(lane) else final[lane], engaged.get(lane, 0)] for lane in final})


def _note(lines: Any) -> str:
    mean = sum(line["nll"] for line in lines) / len(lines)
    return f"{len(lines):,} texts, {mean:.3f} nats a token"


def summarize(folder: TextFolder, against: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Writes summary.json from the kept texts and returns it. `against`: gaps to another run, by `compare.gaps`."""
    assert folder.run is not None, "a summary follows a session"
    ((cell, facts),) = folder.run["cells"].items()
    lines = list(folder.lines.values())
    intervals = {name: interval(figure(lines, name)) if figure(lines, name) else None for name in DEFINITIONS}
    summary = {
        "schema": SCHEMA,
        "kind": KIND,
        "set": folder.run["set"],
        "set_sha256": folder.run["set_sha256"],
        "cell": cell,
        "label": facts["label"],
        "prompts": len(folder.plan.prompts),
        "seeds": list(folder.plan.seeds),
        "tokens": folder.plan.tokens,
        "missing": len(folder.missing),
        "figures": {name: found and asdict(found) for name, found in intervals.items()},
        "rates": pooled_rates(lines),
        "definitions": dict(DEFINITIONS),
        "against": against,
    }
    write_json(folder.path / SUMMARY, summary)
    return summary
