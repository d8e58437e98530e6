"""From words to cells: a sweep in Hydra's grammar, the standard cells, and cells that somebody names.

With -m every combination of the words is a cell. Cells given by name take the words that are the same in every
combination and choose no law (`pack=smollm2 engine.threads=2`), in front of their own, so that theirs win.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from hashlib import sha256

from mtrun.runtime.bench.plan import Cell
from mtrun.runtime.config import hydra_private
from mtrun.runtime.config.aliases import canonical, key_of
from mtrun.runtime.errors import ConfigurationError

STANDARD = "standard"
RULE = "cascade.rule=tokenv3"  # measured where the cascade is asked for and no rule is
_LAW = ("acceptance", "profile")
_LAW_SECTIONS = ("acceptance.", "cascade.", "typical.", "synthetic.")
_LONGEST = 80  # characters of a name made from words


def standard_cells(depth: int) -> tuple[Cell, ...]:
    """The cells that runs, reports and evaluations share, at `depth` drafts a cycle."""
    fixed = f"draft.depth={depth}"

    def opt(alpha: str) -> tuple[str, ...]:
        return ("profile=turbo", "acceptance=cascade", "cascade.rule=opt", f"cascade.alpha={alpha}", fixed)

    found = [
        Cell("plain", "plain decoding", ("profile=turbo", "draft.depth=0")),
        Cell("exact", f"exact, depth {depth}", ("profile=turbo", fixed)),
        Cell("typical-0.2", f"typical, threshold 0.2, depth {depth}", ("profile=typical-0.2", fixed)),
        Cell(
            "typical-pi-0.2",
            f"typical-pi, threshold 0.2, depth {depth}",
            ("profile=turbo", "acceptance=typical-pi", "typical.threshold=0.2", fixed),
        ),
    ]
    for alpha in ("0.75", "0.95"):
        words = ("profile=cascade-tokenv3", f"cascade.alpha={alpha}", fixed)
        found.append(Cell(f"tokenv3-{alpha}", f"cascade tokenv3, alpha {alpha}, depth {depth}", words))
    found += [
        Cell(f"opt-{alpha}", f"cascade opt, alpha {alpha}, depth {depth}", opt(alpha))
        for alpha in ("0", "0.25", "0.5", "0.75")
    ]
    return tuple(found)


def combinations(words: Sequence[str], multirun: bool) -> tuple[list[list[str]], list[str]]:
    """Every combination of the words (one without -m), and the warnings of aliases. Raises ConfigurationError."""
    typed, warnings = canonical(list(words))
    texts = [word.text for word in typed]
    if "acceptance" in map(key_of, texts) and not {"cascade.rule", "profile"} & set(map(key_of, texts)):
        laws = next(word for word in texts if key_of(word) == "acceptance").partition("=")[2].split(",")
        if laws == ["cascade"]:
            texts.append(RULE)
            warnings.append(f"cascade.rule is not given: {RULE} is measured")
    return (hydra_private.sweep(texts) if multirun else [texts]), warnings


def cells_of(jobs: Sequence[Sequence[str]], named: Sequence[Cell], multirun: bool) -> tuple[Cell, ...]:
    """The cells of a run: combinations of words and cells given by name. Raises ConfigurationError."""
    swept = [at for at in range(len(jobs[0])) if len({job[at] for job in jobs}) > 1]
    shared = [word for at, word in enumerate(jobs[0]) if at not in swept]
    laws = [word for word in shared if chooses_law(word)]
    if named and laws and not multirun:
        raise ConfigurationError(
            f"{laws[0]} chooses a law, and so does every cell given by name: drop it, or add -m for a cell of its own"
        )
    common = tuple(word for word in shared if not chooses_law(word))
    found = [Cell(cell.name, cell.label, (*common, *cell.overrides)) for cell in named]
    if multirun or not named:
        for job in jobs:
            telling = [job[at] for at in swept] or list(job)
            found.append(Cell(slug(telling), " ".join(telling) or "as configured", tuple(job)))
    return _unique(found)


def named_cells(picked: str | None, described: Sequence[str], depth: int) -> list[Cell]:
    """Cells of `--cells standard|A,B` and of each `--cell NAME=WORDS`. Raises ConfigurationError."""
    known = {cell.name: cell for cell in standard_cells(depth)}
    wanted = [name.strip() for name in (picked or "").split(",") if name.strip()]
    names = list(known) if STANDARD in wanted else wanted
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"there is no cell {name!r}: name {STANDARD}, some of {', '.join(known)}, or describe one with --cell"
            )
    found = [known[name] for name in names]
    for text in described:
        name, equals, words = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
            raise ConfigurationError(f'--cell {text!r} cannot be read: write --cell "NAME=KEY=VALUE KEY=VALUE"')
        found.append(Cell(name, words.strip() or "as configured", tuple(shlex.split(words))))
    twice = [cell.name for at, cell in enumerate(found) if cell.name in {one.name for one in found[:at]}]
    if twice:
        raise ConfigurationError(f"two cells are called {twice[0]}: give every name once")
    return found


def side_cell(text: str, depth: int, other: str) -> Cell:
    """One side of abab: a standard cell's name, or words. `other` tells two equal sides apart."""
    known = {cell.name: cell for cell in standard_cells(depth)}
    if text.strip() in known:
        return known[text.strip()]
    words = tuple(shlex.split(text))
    if not words or any("=" not in word for word in words):
        raise ConfigurationError(
            f"--{other} {text!r} cannot be read: write words such as profile=turbo, or one of {', '.join(known)}"
        )
    return Cell(slug(words), " ".join(words), words)


def chooses_law(word: str) -> bool:
    """Whether a word decides which law a cell runs under."""
    key = key_of(word)
    return key in _LAW or key.startswith(_LAW_SECTIONS)


def slug(words: Sequence[str]) -> str:
    """A name that is safe in file names; words that are too long for one keep a digest of themselves."""
    text = "_".join(re.sub(r"[^A-Za-z0-9._-]+", "-", word).strip("-.") for word in words) or "default"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}-{sha256(' '.join(words).encode()).hexdigest()[:8]}"


def _unique(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """A number behind every name that another cell has already."""
    taken: set[str] = set()
    found = []
    for cell in cells:
        name, number = cell.name, 2
        while name in taken:
            name, number = f"{cell.name}-{number}", number + 1
        taken.add(name)
        found.append(Cell(name, cell.label, cell.overrides))
    return tuple(found)
