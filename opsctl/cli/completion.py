"""`opsctl completion`: the script that a shell sources to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from opsctl.base.errors import OpsctlError


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell completion script.

    \b
    opsctl completion bash > ~/.local/share/bash-completion/completions/opsctl
    opsctl completion zsh > "${fpath[1]}/_opsctl"
    opsctl completion fish > ~/.config/fish/completions/opsctl.fish
    """
    completer = get_completion_class(shell)
    assert completer is not None  # click has all three
    try:
        click.echo(completer(ctx.find_root().command, {}, "opsctl", "_OPSCTL_COMPLETE").source())
    except RuntimeError as error:
        raise OpsctlError(f"{shell}: {error}") from error
