"""`opsctl help`, `opsctl version` and `opsctl completion`."""

import click
from click.shell_completion import get_completion_class

from opsctl import __version__
from opsctl.base.errors import InputError, OpsctlError
from opsctl.cli.command_names import suggest


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command.

    `opsctl help X` prints the same text as `opsctl X --help`.

    \b
    opsctl help
    opsctl help launch
    opsctl help kill-switch arm
    """
    context = ctx.find_root()
    for word in words:
        group = context.command
        command = group.get_command(context, word) if isinstance(group, click.Group) else None
        if command is None:
            hint = suggest(words, context) or "opsctl --help lists all commands"
            raise InputError(f"no such command: {' '.join(words)}", hint=hint)
        context = command.context_class(command, info_name=word, parent=context)
    click.echo(context.get_help(), color=context.color)


@click.command()
def version() -> None:
    """Print the version of opsctl.

    \b
    opsctl version
    """
    click.echo(f"opsctl {__version__}")


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
