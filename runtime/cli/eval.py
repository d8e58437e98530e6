"""`mtrun eval tasks|score|text|compare`: a lazy table of the commands that measure what a law does to answers."""

from __future__ import annotations

import click

from mtrun.runtime.cli.lazy import imported
from mtrun.runtime.errors import ConfigurationError

# Command -> "module:object", imported when it is called.
COMMANDS = {
    "tasks": "mtrun.runtime.cli.eval_tasks:tasks",
    "score": "mtrun.runtime.cli.eval_score:score",
    "text": "mtrun.runtime.cli.eval_text:text",
    "compare": "mtrun.runtime.cli.eval_compare:compare",
}
# One line each for the help page, so that printing it imports no command.
SUMMARIES = {
    "tasks": "Decode a task set under a law and score the answers.",
    "score": "Score the answers of a run again, without a model.",
    "text": "Decode free text under a law and score it by the model.",
    "compare": "Compare two runs, paired by task or prompt and seed.",
}


class Evaluations(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


def load(name: str) -> click.Command:
    """Imports one command. Raises ConfigurationError where its file is absent."""
    found = imported(COMMANDS[name])
    if found is None:
        raise ConfigurationError(
            f"this build has no command eval {name}: install mtrun again, or use one of {', '.join(COMMANDS)}"
        )
    return found


@click.command("eval", cls=Evaluations)
def evaluate() -> None:
    """Measure answers and text of a law, and compare two: tasks, score, text, compare."""
