"""`mtrun completion SHELL`: the script to source. Words are matched by the program itself at each press of Tab."""

from __future__ import annotations

import click

# Click's own bash script breaks words at `=`, as readline does, and then never sees `profile=tur` whole.
# This one hands over the line up to the cursor and gives back only what follows the last `=`.
_BASH = """\
_mtrun_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" word reply type value
    local -a words
    read -ra words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    word="${words[-1]}"
    reply=$(env COMP_WORDS="$line" COMP_CWORD=$((${#words[@]} - 1)) _MTRUN_COMPLETE=bash_complete "$1")
    COMPREPLY=()
    while IFS=',' read -r type value; do
        case "$type" in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                [[ "$word" == *=* && "$value" == *=* && "$COMP_WORDBREAKS" == *=* ]] && value="${value##*=}"
                COMPREPLY+=("$value") ;;
        esac
    done <<< "$reply"
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *[=.] ]] && compopt -o nospace
    return 0
}
complete -F _mtrun_completion mtrun
"""


def script(shell: str, root: click.Command) -> str:
    """The completion script of bash, zsh or fish."""
    if shell == "bash":
        return _BASH
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    assert completer is not None
    return completer(root, {}, "mtrun", "_MTRUN_COMPLETE").source()


@click.command("completion", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print the completion script: for bash, add `eval "$(mtrun completion bash)"` to ~/.bashrc."""
    click.echo(script(shell, ctx.find_root().command))
    return 0
