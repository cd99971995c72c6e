"""What to type instead of a command that does not exist."""

from collections.abc import Sequence

import click


class SuggestingGroup(click.Group):
    """A group that names what to type instead of an unknown command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name):
            return super().resolve_command(ctx, args)
        words = [*ctx.command_path.split()[1:], name]
        raise click.UsageError(f"No such command {name!r}. {suggest(words, ctx)}".rstrip(), ctx)


def suggest(words: Sequence[str], context: click.Context) -> str:
    """Return a sentence for the unknown last word in the group of `context`; empty without a suggestion."""
    from difflib import get_close_matches  # noqa: PLC0415 (only for a typo)

    from opsctl.base.tables import read_package_table  # noqa: PLC0415 (as above)

    if instead := read_package_table("cli/removed_commands.toml").get(" ".join(words)):
        return f"It is now: {instead}"
    group = context.command
    names = group.list_commands(context) if isinstance(group, click.Group) else []
    return "".join(f"Did you mean {name!r}?" for name in get_close_matches(words[-1], names, 1))
