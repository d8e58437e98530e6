"""The `mtrun` command: a lazy table of commands, with `serve` where the first word is already an override or a flag."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import click

from mtrun.runtime.cli.lazy import imported
from mtrun.runtime.errors import ConfigurationError, MtrunError

# Command -> "module:object", imported when it is called.
COMMANDS = {
    "serve": "mtrun.runtime.cli.serve:serve",
    "generate": "mtrun.runtime.cli.generate:generate",
    "audit": "mtrun.runtime.cli.audit:audit",
    "profiles": "mtrun.runtime.cli.profiles:profiles",
    "pack": "mtrun.runtime.cli.pack:pack",
    "forge": "mtrun.runtime.cli.forge:forge",
    "eval": "mtrun.runtime.cli.eval:evaluate",
    "bench": "mtrun.runtime.cli.bench:bench",
    "report": "mtrun.runtime.cli.report:report",
    "receipt": "mtrun.runtime.cli.receipt:receipt",
    "completion": "mtrun.runtime.cli.completion:completion",
}
# One line each for the help page, so that printing it imports no command.
SUMMARIES = {
    "serve": "Serve a pack over HTTP (the default command).",
    "generate": "Generate from one prompt.",
    "audit": "Show every lane with its verdict, offline or from a running server.",
    "profiles": "List the profiles.",
    "pack": "List, fetch, inspect and verify packs.",
    "forge": "Train a draft head.",
    "eval": "Measure answers and text of a law, and compare two.",
    "bench": "Measure speed: windows, sweeps, paired rounds.",
    "report": "Tables, charts and a page from the receipts of runs.",
    "receipt": "Show, compare, verify or replay a receipt.",
    "completion": "Print the completion script of a shell.",
}
CONFIGURED = ("serve", "generate", "audit")
DEFAULT = "serve"
_OWN_FLAGS = ("--help", "-h", "--version")


class Commands(click.Group):
    """A group that imports a command when it is called and defaults to `serve`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load(cmd_name) if cmd_name in COMMANDS else None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if wants_default(args) and not (ctx.resilient_parsing and not args):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise ConfigurationError(_unknown_command(args[0]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from mtrun.runtime.cli.hydra_flags import complete_override

        names = [CompletionItem(name, help=SUMMARIES[name]) for name in COMMANDS if name.startswith(incomplete)]
        return names if names else complete_override(ctx, None, incomplete)


def wants_default(args: Sequence[str]) -> bool:
    """Whether `serve` is meant: no word at all, or a first word that is an override or a flag of a command."""
    if not args:
        return True
    first = args[0]
    return first not in _OWN_FLAGS and ("=" in first or first.startswith(("+", "~", "-")))


def _unknown_command(word: str) -> str:
    from mtrun.runtime.cli.profiles import list_profiles
    from mtrun.runtime.config.compose import open_library
    from mtrun.runtime.config.nearest import nearest

    if word in (profile.name for profile in list_profiles(open_library())):
        return f"there is no command {word!r}, but a profile: write profile={word}"
    close = nearest(word, COMMANDS)
    hint = f"did you mean {close}?" if close else f"commands are {', '.join(COMMANDS)}, and settings are key=value"
    return f"there is no command {word!r}: {hint}"


def load(name: str) -> click.Command:
    """Import one command. A command whose file is absent still shows its configuration and says that it cannot run."""
    return imported(COMMANDS[name]) or _absent(name)


def _absent(name: str) -> click.Command:
    from mtrun.runtime.cli.hydra_flags import configured_command

    sentence = f"this build has no command {name}: install mtrun again, or use one of {', '.join(COMMANDS)}"
    if name in CONFIGURED:

        def refuse(composed: Any, **_: Any) -> int:
            raise ConfigurationError(sentence)

        return configured_command(name, multirun=name != DEFAULT)(refuse)

    @click.command(name, context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def refuse_words(words: tuple[str, ...]) -> int:
        raise ConfigurationError(sentence)

    return refuse_words


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"mtrun {metadata.version('mtrun')}")
        ctx.exit()


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def root() -> None:
    """Multi-token-prediction decoding, configured by words: mtrun profile=cascade-tokenv3 cascade.alpha=0.9"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line. Exit codes: 0 done, 1 failed, 2 the words cannot be honoured, 130 interrupted."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        result = root.main(args=args, prog_name="mtrun", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except MtrunError as error:
        return _fail(str(error), error.exit_code)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except click.ClickException as error:
        return _fail(_one_sentence(error.format_message()), 2)
    except BrokenPipeError:
        _silence_stdout()
        return 0


def _fail(sentence: str, code: int) -> int:
    click.echo(f"mtrun: error: {sentence}", err=True)
    return code


def _one_sentence(message: str) -> str:
    text = " ".join(message.split()).rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _silence_stdout() -> None:
    """The reader of a pipe went away: keep the interpreter from complaining when it flushes."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
