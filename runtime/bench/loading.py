"""The generators of a run's cells over one load of the weights, and the laws that watch them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mtrun.runtime.bench.cells import combinations, slug, standard_cells
from mtrun.runtime.bench.plan import Cell, Plan
from mtrun.runtime.errors import ConfigurationError, MtrunError

if TYPE_CHECKING:
    from mtrun.runtime.acceptance.law import AcceptanceLaw
    from mtrun.runtime.generator import MtpGenerator
    from mtrun.runtime.preparation import Preparation

Skip = Callable[[str, str], None]  # (cell, reason)


def prepare_cells(cells: Sequence[Cell], config_dir: Path | None, skip: Skip) -> dict[str, Preparation]:
    """Composes every cell before any is loaded, since lanes of the process stage look at what is loaded already.

    A cell that cannot be composed is skipped with its reason. Raises what the first one raised where none can be.
    """
    from mtrun.runtime.config.compose import compose
    from mtrun.runtime.preparation import prepare

    found: dict[str, Preparation] = {}
    failed: dict[str, MtrunError] = {}
    for cell in cells:
        try:
            found[cell.name] = prepare(compose(cell.overrides, config_dir=config_dir))
        except MtrunError as error:
            failed[cell.name] = error
    if not found:
        raise next(iter(failed.values()))
    for name, error in failed.items():
        skip(name, str(error))
    return found


def load_cells(prepared: dict[str, Preparation], skip: Skip, say: Callable[[str], None]) -> dict[str, MtpGenerator]:
    """The first cell that can loads the weights, every other is a variant of it; one that cannot is skipped."""
    from mtrun.runtime.generator import MtpGenerator

    loaded: dict[str, MtpGenerator] = {}
    for name, run in prepared.items():
        say(f"{name}: arming")
        first = next(iter(loaded.values()), None)
        try:
            if first is not None:
                loaded[name] = first.variant(run)
                continue
            generator = MtpGenerator(run)
            generator.load()
            loaded[name] = generator
        except MtrunError as error:
            skip(name, str(error))
        except Exception as error:  # a lane or a reader that broke: the other cells do not depend on it
            skip(name, f"{type(error).__name__}: {error}")
    return loaded


def close_all(loaded: dict[str, MtpGenerator]) -> None:
    """Variants go before the weights they share."""
    for generator in reversed(loaded.values()):
        generator.close()
    loaded.clear()


def shadow_laws(plan: Plan, pack: Preparation, config_dir: Path | None) -> dict[str, AcceptanceLaw]:
    """Laws that watch each window, by name: standard cells' names, and one combination of words (sweeps allowed).

    Raises ConfigurationError.
    """
    from mtrun.runtime.config.compose import compose
    from mtrun.runtime.generator import configured_law
    from mtrun.runtime.preparation import prepare

    if plan.shadow is None:
        return {}
    known = {cell.name: cell.overrides for cell in standard_cells(max(pack.config.draft.depth, 1))}
    given = plan.shadow.split()
    wanted = {name: list(known[name]) for name in given if name in known}
    words = [word for word in given if word not in known]
    if any("=" not in word for word in words):
        raise ConfigurationError(
            f"--shadow {plan.shadow!r} cannot be read: write words of a law, or {', '.join(known)}"
        )
    jobs = combinations(words, True)[0] if words else []
    swept = [at for at in range(len(words)) if len({job[at] for job in jobs}) > 1]
    wanted |= {slug([job[at] for at in swept] or job): job for job in jobs}
    source = f"pack={pack.pack.folder}"
    runs = {name: prepare(compose([source, *job], config_dir=config_dir)) for name, job in wanted.items()}
    return {name: configured_law(run) for name, run in runs.items()}
