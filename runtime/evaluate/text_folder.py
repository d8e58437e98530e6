"""The folder of a run of texts: a plan that is fixed, a setting that is kept, texts that survive a kill.

run.json {schema, kind, set, set_sha256, plan, plan_sha256, command, sessions, cells, missing}, settings/, answers.jsonl
with one line a text, summary.json {schema, kind, set, set_sha256, cell, label, prompts, seeds, tokens, missing, figures
{name: {value, low, high, n} over seeds}, rates, definitions, against}.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtrun.runtime.errors import ConfigurationError, RequestError
from mtrun.runtime.evaluate.folder import ANSWERS, decisive, existing, first_lines, new_run
from mtrun.runtime.evaluate.unlike import leaves, setting_differences
from mtrun.runtime.measure.digest import sha256_of
from mtrun.runtime.measure.store import RUN, append_line, keep_setting, read_setting, write_json

if TYPE_CHECKING:
    from mtrun.runtime.preparation import Preparation

KIND = "text"
PACKAGED = "free-form"  # the name of the prompts that ship with mtrun
_SHOWN = 3  # differences that a refusal names
PROMPTS = Path(__file__).with_name("prompts.txt")

Key = tuple[int, int]  # prompt, seed


@dataclass(frozen=True)
class Plan:
    """What decides which texts there are."""

    set: str
    prompts: tuple[str, ...]  # user turns
    seeds: tuple[int, ...]
    tokens: int  # of every text, whatever the model would have stopped at

    @classmethod
    def of(cls, path: Path | None, seeds: int, tokens: int) -> Plan:
        """Prompts of a file, one a line; None = those that ship with mtrun. Raises ConfigurationError."""
        try:
            lines = (path or PROMPTS).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise ConfigurationError(f"cannot read the prompts {path} ({reason}): name a text file.") from error
        prompts = tuple(line for line in lines if line.strip())
        if not prompts:
            raise ConfigurationError(f"{path} holds no prompt: write one a line.")
        return cls(str(path or PACKAGED), prompts, tuple(range(seeds)), tokens)

    @property
    def set_sha256(self) -> str:
        return sha256_of(list(self.prompts))

    @property
    def texts(self) -> list[Key]:
        """Every text there has to be, seed by seed."""
        return [(prompt, seed) for seed in self.seeds for prompt in range(len(self.prompts))]

    def to_json(self) -> dict[str, Any]:
        """Without the file's name: two files of the same prompts make one plan."""
        return {"prompts": list(self.prompts), "seeds": list(self.seeds), "tokens": self.tokens}

    def check_fits(self, run: Preparation) -> None:
        """Raises ConfigurationError where a prompt leaves no room for its text in the pack's context."""
        for number, prompt in enumerate(self.prompts):
            try:
                size = len(run.tokenizer.encode_chat([{"role": "user", "content": prompt}]))
            except RequestError as error:
                raise ConfigurationError(f"{run.pack.name} cannot be asked prompt {number}: {error}") from error
            if size + self.tokens > run.context_limit:
                raise ConfigurationError(
                    f"prompt {number} has {size} tokens, which with {self.tokens} more pass the context limit of "
                    f"{run.context_limit}: give fewer --tokens, or shorten it."
                )


class TextFolder:
    """One run on disk. Made by `start`, which refuses whatever would mix two runs."""

    def __init__(self, path: Path, plan: Plan, run: dict[str, Any] | None) -> None:
        self.path, self.plan = path, plan
        self.run = run  # run.json, None until the first session begins
        self.lines = {} if run is None else read_texts(path)

    @classmethod
    def start(cls, path: Path, plan: Plan, resume: bool) -> TextFolder:
        """A new run, or with `resume` the one that is there. Raises ConfigurationError."""
        run = existing(path, resume)
        if run is None:
            return cls(path, plan, None)
        if run["kind"] != KIND:
            raise ConfigurationError(f"{path} holds a run of {run['kind']}, not of text: give a new folder.")
        if told := leaves(run["plan"], plan.to_json()):
            raise ConfigurationError(f"{path} holds a run of another plan ({'; '.join(told)}): give a new folder.")
        return cls(path, plan, run)

    @property
    def missing(self) -> list[Key]:
        """The texts that the plan wants and the folder lacks, in the plan's order."""
        return [key for key in self.plan.texts if key not in self.lines]

    def check(self, run: Preparation) -> None:
        """Holds a run that is prepared, not loaded, against the folder's. Raises ConfigurationError."""
        if self.run is None:
            return
        found, kept = decisive(run), self._setting(self.run)
        known = {"configuration": kept["config"], "pack": kept["pack"], "code": kept["code"]["source_sha256"]}
        self._refuse(leaves(known, {name: found[name] for name in known}))

    def begin(self, cell: str, label: str, setting: Mapping[str, Any], command: Sequence[str]) -> None:
        """Opens a session. Raises ConfigurationError where its setting is another than the first one's."""
        from mtrun.runtime.measure.machine import session

        if self.run is not None:
            self._refuse(setting_differences(self._setting(self.run), setting, same_law=True))
        name = keep_setting(self.path, setting)
        if self.run is None:
            facts = {"label": label, "overrides": setting["overrides"], "setting": name}
            self.run = new_run(KIND, self.plan, command, cell, facts)
        self.run["sessions"].append(session() | {"setting": name})
        self._save()

    def _setting(self, run: Mapping[str, Any]) -> dict[str, Any]:
        (facts,) = run["cells"].values()
        return read_setting(self.path, facts["setting"])

    def _refuse(self, told: Sequence[str]) -> None:
        if told:
            more = f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
            raise ConfigurationError(
                f"{self.path} was begun under another setting ({'; '.join(told[:_SHOWN])}{more}): give a new folder."
            )

    def keep(self, line: dict[str, Any]) -> None:
        """One text more, on disk when this returns."""
        append_line(self.path / ANSWERS, line)
        self.lines[line["prompt"], line["seed"]] = line

    def end(self, verdicts: Mapping[str, Any]) -> None:
        """Closes the session that began last; `verdicts` are the lanes' after the last text."""
        from mtrun.runtime.measure.machine import load

        assert self.run is not None, "a session ends after it began"
        self.run["sessions"][-1] |= {"ended": time.time(), "load_after": load(), "verdicts": dict(verdicts)}
        self._save()

    def _save(self) -> None:
        assert self.run is not None, "there is nothing to save before a session began"
        self.run["missing"] = [{"prompt": prompt, "seed": seed} for prompt, seed in self.missing]
        write_json(self.path / RUN, self.run)


def read_texts(path: Path) -> dict[Key, dict[str, Any]]:
    """The texts in a run's folder, by prompt and seed."""
    return first_lines(path, "prompt")
