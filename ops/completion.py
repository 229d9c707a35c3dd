"""`celeriac completion`: the script that makes a shell complete our commands. Loads click and nothing else."""

import click
from click.shell_completion import get_completion_class

from celeriac.common.contract.errors import UsageError

VARIABLE = "_CELERIAC_COMPLETE"
"""Where the script tells us that it asks; click's own name for it."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print the script that makes SHELL complete commands, options and ids of jobs.

    \b
    bash: add to ~/.bashrc     eval "$(celeriac completion bash)"
    zsh:  add to ~/.zshrc      eval "$(celeriac completion zsh)"   (after compinit)
    fish: run once             celeriac completion fish > ~/.config/fish/completions/celeriac.fish

    To save the start of a program with each shell, put the script into a file once and source that.
    """
    found = get_completion_class(shell)
    if found is None:
        raise UsageError(f"there is no completion for {shell}")
    root = ctx.find_root()
    click.echo(found(root.command, {}, "celeriac", VARIABLE).source())
    return 0
