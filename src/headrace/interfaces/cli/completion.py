"""`headrace completion`: what makes a shell complete our commands."""

from __future__ import annotations

import click

_INSTALL = {
    "bash": 'eval "$(headrace completion bash)"      # in ~/.bashrc; bash 4.4 and later',
    "zsh": 'eval "$(headrace completion zsh)"       # in ~/.zshrc, after compinit',
    "fish": "headrace completion fish | source       # in ~/.config/fish/config.fish",
}


@click.command(
    short_help="Print the completion of a shell.", epilog="\b\n" + "\n".join(_INSTALL.values())
)
@click.argument("shell", type=click.Choice(list(_INSTALL)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in a SHELL."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(context.find_root().command, {}, "headrace", "_HEADRACE_COMPLETE")
    # Not `source()`: for bash it runs one to learn its version, and warns of old ones.
    click.echo(made.source_template % made.source_vars())
