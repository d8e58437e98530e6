"""What every configured command shares: override words, Hydra's flags, aliases, completion."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from mtrun.runtime.errors import ConfigurationError

_OVERRIDE = re.compile(r"[+~]*[A-Za-z_][\w./@]*(=|$)|[+~]")


@dataclass(frozen=True)
class Flags:
    """The flags that the shell handles itself, as typed."""

    cfg: str | None
    resolve: bool
    package: str | None
    info: bool
    why: bool
    multirun: bool
    config_dir: Path | None
    aliases: tuple[str, ...]  # such as "--cascade-threshold=0.9"


def configured_command(
    name: str, *, words: bool = False, multirun: bool = True
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Make `function(composed, **own_options) -> exit code or None` a command that is configured like all others.

    words: positional words that are no overrides reach the function as `words: tuple[str, ...]`, or are refused.
    multirun: `-m` composes every combination first, then calls the function for each in turn; False refuses `-m`.
    The command's own click options go between this decorator and the function.
    """

    def decorate(function: Callable[..., int | None]) -> click.Command:
        def callback(overrides: tuple[str, ...], **options: Any) -> int:
            flags = _take_flags(options)
            if flags.multirun and not multirun:
                raise ConfigurationError(f"{name} runs one configuration: drop -m/--multirun")
            plain, rest = _sort_words(overrides, words)
            if words:
                options["words"] = rest
            return _run(function, [*flags.aliases, *plain], flags, options)

        callback.__doc__ = function.__doc__
        callback.__click_params__ = list(getattr(function, "__click_params__", []))  # type: ignore[attr-defined]
        for decorator in reversed(_shared()):
            callback = decorator(callback)
        return click.command(name, context_settings={"help_option_names": ["-h", "--help"]})(callback)

    return decorate


def _shared() -> list[Callable[[Any], Any]]:
    return [
        click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_override),
        click.option(
            "--cfg", "-c", type=click.Choice(["job", "hydra", "all"]), help="Print the configuration, run nothing."
        ),
        click.option("--resolve", is_flag=True, help="With --cfg: replace references by their values."),
        click.option("--package", "-p", metavar="KEY", help="With --cfg: print one part only."),
        click.option("--info", "-i", is_flag=True, help="Print the files that were searched and merged."),
        click.option("--why", is_flag=True, help="Print every value and who decided it."),
        click.option("--multirun", "-m", is_flag=True, help="Run every combination of comma lists."),
        click.option(
            "--config-dir", "-cd", type=click.Path(path_type=Path), help="A folder with profiles of your own."
        ),
        click.option("--cascade-threshold", metavar="X", help="Another name of cascade.alpha."),
        click.option("--cascade-rule", metavar="RULE", help="Another name of cascade.rule."),
        click.option("--typical-threshold", metavar="X", help="Another name of typical.threshold."),
    ]


def _take_flags(options: dict[str, Any]) -> Flags:
    typed = {name: options.pop(name) for name in ("cascade_threshold", "cascade_rule", "typical_threshold")}
    aliases = tuple(f"--{name.replace('_', '-')}={value}" for name, value in typed.items() if value is not None)
    names = ("cfg", "resolve", "package", "info", "why", "multirun", "config_dir")
    return Flags(**{name: options.pop(name) for name in names}, aliases=aliases)


def _sort_words(given: tuple[str, ...], wanted: bool) -> tuple[list[str], tuple[str, ...]]:
    def is_override(word: str) -> bool:
        match = _OVERRIDE.match(word)
        return match is not None and ("=" in word or word[0] in "+~")

    if not wanted:
        return list(given), ()
    return [word for word in given if is_override(word)], tuple(word for word in given if not is_override(word))


def _run(function: Callable[..., int | None], overrides: list[str], flags: Flags, options: dict[str, Any]) -> int:
    from mtrun.runtime.config.compose import compose

    if (flags.resolve or flags.package) and flags.cfg is None:
        raise ConfigurationError("--resolve and --package shape what --cfg prints: add --cfg job")
    jobs = _combinations(overrides) if flags.multirun else [overrides]
    runs = [compose(job, config_dir=flags.config_dir) for job in jobs]
    for warning in dict.fromkeys(sentence for run in runs for sentence in run.warnings):
        click.echo(f"mtrun: warning: {warning}", err=True)
    if flags.cfg or flags.info or flags.why:
        for run in runs:
            _display(run, flags)
        return 0
    codes = [function(run, **options) or 0 for run in runs]
    return max(codes)


def _combinations(overrides: list[str]) -> list[list[str]]:
    """Every combination, each as a list of words; aliases keep their place in front."""
    from mtrun.runtime.config import hydra_private
    from mtrun.runtime.config.aliases import canonical

    typed, warnings = canonical(overrides)
    for warning in warnings:
        click.echo(f"mtrun: warning: {warning}", err=True)
    return hydra_private.sweep([word.text for word in typed])


def _display(composed: Any, flags: Flags) -> None:
    from mtrun.runtime.cli import display

    if flags.info:
        click.echo(display.info_text(composed, flags.config_dir))
    if flags.why:
        from mtrun.runtime.config.why import why_table

        click.echo(why_table(composed))
    if flags.cfg:
        text = display.cfg_text(composed, flags.cfg, flags.resolve, flags.package, flags.config_dir)
        click.echo(text, nl=False, file=sys.stdout)


def complete_override(ctx: click.Context, param: click.Parameter | None, incomplete: str) -> list[Any]:
    """Completions of an override word by Hydra's own matching. Silent on any mistake in the words before."""
    from click.shell_completion import CompletionItem

    from mtrun.runtime.config.compose import open_library
    from mtrun.runtime.errors import MtrunError

    before = tuple(ctx.params.get("overrides") or ())
    try:
        library = open_library(ctx.params.get("config_dir"))
    except MtrunError:
        return []
    return [CompletionItem(item) for item in library.complete(before, incomplete)]
