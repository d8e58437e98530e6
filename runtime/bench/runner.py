"""One session of a run: loads the cells, warms each up, and measures every window that the folder lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtrun.runtime.bench import loading
from mtrun.runtime.bench.folder import RunFolder, split_of
from mtrun.runtime.bench.observe import Head, observe, observe_split, refusal, score_nll
from mtrun.runtime.bench.plan import Plan, Slot, warm_up
from mtrun.runtime.bench.prompts import fitted, long_prompt_ids, prompt_ids
from mtrun.runtime.measure.figures import contention

if TYPE_CHECKING:
    from mtrun.runtime.generator import MtpGenerator
    from mtrun.runtime.preparation import Preparation

MIB = 2**20


class Runner:
    """Measures on the thread that calls it: MLX arrays belong to the thread that made them."""

    def __init__(self, folder: RunFolder, say: Callable[[str], None], config_dir: Path | None = None) -> None:
        self.folder, self.plan, self.say, self.config_dir = folder, folder.plan, say, config_dir
        self.generators: dict[str, MtpGenerator] = {}
        self.settings: dict[str, tuple[str, Mapping[str, Any]]] = {}  # cell -> (name, what its windows must keep to)
        self.laws: dict[str, Any] = {}

    def measure(self, preflight: Mapping[str, Any]) -> None:
        """Every window that the folder lacks. Raises what composing raises where no cell can be composed, and
        ConfigurationError where a resumed run would measure something else."""
        if not self.folder.lacking():
            self.say("every window is measured already")
            return
        skipped: dict[str, str] = {}
        prepared = loading.prepare_cells(self.plan.cells, self.config_dir, skipped.__setitem__)
        self.folder.open_session(preflight)
        try:
            self._open(prepared, skipped)
            self._all(Head(self.plan.kind, self.folder.data["plan_sha256"], self.folder.session, self.plan.tokens))
        finally:
            self.folder.close_session()
            loading.close_all(self.generators)

    def _open(self, prepared: dict[str, Preparation], skipped: dict[str, str]) -> None:
        from mtrun.runtime.measure.setting import setting_of

        self.generators = loading.load_cells(prepared, skipped.__setitem__, self.say)
        for name, reason in skipped.items():
            self.say(f"{name} is left out: {reason}")
            self.folder.skip(name, reason)
        for cell in self.plan.cells:
            if cell.name in self.generators:
                # What other cells' probes did to a lane of the whole process is none of this one's serving.
                self.generators[cell.name].registry.start_serving()
                setting = setting_of(self.generators[cell.name], cell.overrides)
                self.settings[cell.name] = self.folder.settle(cell.name, setting)
        if self.generators:
            first = next(iter(self.generators.values())).prepared
            self.laws = loading.shadow_laws(self.plan, first, self.config_dir)

    def _all(self, head: Head) -> None:
        slots = [slot for slot in self.folder.lacking() if slot.cell in self.generators]
        busy = {slot.cell for slot in slots}
        for slot in (one for one in warm_up(self.plan, self.folder.session) if one.cell in busy):
            self._window(slot, head, "warm-up")
        known = self.folder.windows()
        splits = {cell: split_of(known, cell) for cell in busy}
        for slot in (one for one in warm_up(self.plan, self.folder.session) if self.plan.split and one.cell in busy):
            splits[slot.cell] = splits[slot.cell] or self._split(slot, head)
        for number, slot in enumerate(slots, 1):
            self._window(slot, head, f"{number}/{len(slots)}", splits[slot.cell])

    def _window(self, slot: Slot, head: Head, progress: str, split: Mapping[str, float] | None = None) -> None:
        """Measures one window and stores it, whatever becomes of it."""
        setting, asked = self.settings[slot.cell]
        ids, obstacle = self._prompt(slot)
        if obstacle is not None:
            window = head.unmeasured(slot, setting, refused=obstacle)
        else:
            try:
                found = observe(self.generators[slot.cell], ids, slot.request_seed, self.plan.tokens, self.laws)
                found |= {"split_ms": split, "refused": refusal(found, self.plan.tokens, asked)}
                if self.plan.nll and slot.round >= 0:
                    found["nll"] = score_nll(self._scorer, ids, found["ids"])
                window = {**head.of(slot, setting, len(ids)), **found}
            except Exception as error:  # recorded, and the run goes on: the next window may be fine
                window = head.unmeasured(slot, setting, error=f"{type(error).__name__}: {error}")
        self.folder.add(slot.file, window)
        self.say(f"{progress:>9} {slot.file.removesuffix('.json')}: {_told(window)}")

    def _split(self, slot: Slot, head: Head) -> Mapping[str, float] | None:
        """The one window of a cell that times the parts of a cycle; its file says so and it is never counted."""
        setting, _ = self.settings[slot.cell]
        ids, obstacle = self._prompt(slot)
        if obstacle is not None:
            return None
        try:
            found, how = observe_split(self.generators[slot.cell], ids, slot.request_seed, self.plan.tokens)
            window = {**head.of(slot, setting, len(ids)), **found, "split": how}
        except Exception as error:  # as above
            window = head.unmeasured(slot, setting, error=f"{type(error).__name__}: {error}")
        self.folder.add(slot.file.removesuffix(".json") + ".split.json", window)
        self.say(f"    split {slot.cell}: {_told(window)}")
        return window["split_ms"]

    @property
    def _scorer(self) -> MtpGenerator:
        """One trunk reads the texts of all cells, so that a gap between two is none of their lanes'."""
        return next(iter(self.generators.values()))

    def _prompt(self, slot: Slot) -> tuple[Sequence[int], str | None]:
        """The window's prompt as ids, and why it cannot be measured (None = it can)."""
        run, plan = self.generators[slot.cell].prepared, self.plan
        if slot.context is None:
            ids = prompt_ids(run.tokenizer, plan.prompts[slot.prompt])
            return ids, over_cap(run, plan, len(ids))
        room = run.context_limit - plan.tokens
        length = fitted(slot.context, plan.contexts, room)
        if length is None:
            limit = run.context_limit
            return (), f"a context of {limit} tokens holds no prompt of {slot.context} and {plan.tokens} of reply"
        if obstacle := over_cap(run, plan, length):
            return (), obstacle
        return long_prompt_ids(run.tokenizer, plan.prompts, slot.prompt, length), None


def over_cap(run: Preparation, plan: Plan, prompt: int) -> str | None:
    """A sentence where the estimate of a window passes the memory cap. An upper estimate, made before anything runs."""
    if plan.memory_cap is None:
        return None
    need, config = run.footprint, run.config
    request = need.request(prompt, plan.tokens, config.engine.prefill_chunk, config.draft.depth)
    total = need.weights + need.draft_rows + request
    if total <= plan.memory_cap:
        return None
    return (
        f"not measured: {prompt} tokens of prompt and {plan.tokens} of reply are estimated at {total / MIB:.0f} MiB of "
        f"memory, and the cap is {plan.memory_cap / MIB:.0f} MiB"
    )


def _told(window: Mapping[str, Any]) -> str:
    """A line for people."""
    if window["error"] or window["refused"]:
        return f"died: {window['error']}" if window["error"] else f"refused: {window['refused']}"
    nll = "" if window["nll"] is None else f", nll {window['nll']:.3f}"
    return f"{window['decode_tok_s']:.1f} tok/s, wall/cpu {contention(window):.2f}{nll}"
