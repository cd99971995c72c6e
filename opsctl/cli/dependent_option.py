"""Options that depend on other options of the command line."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click


class DependentOption(click.Option):
    """An option that is refused where it would have no effect.

    `only_with` names options of which one must be given as well, `not_with` options and arguments that exclude this
    option, by the words of the help: `--watch`, `TRAIN`.
    """

    def __init__(
        self, names: Sequence[str], *, only_with: Sequence[str] = (), not_with: Sequence[str] = (), **settings: Any
    ) -> None:
        super().__init__(names, **settings)
        self.only_with = only_with
        self.not_with = not_with

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        if self.name in opts and not ctx.resilient_parsing:
            self._refuse(ctx, _given_words(ctx.command, opts))
        return super().handle_parse_result(ctx, opts, args)

    def _refuse(self, ctx: click.Context, given: Sequence[str]) -> None:
        """Raise UsageError if the option has no effect beside the other words of the command line."""
        own = max(self.opts, key=len)
        if self.only_with and not set(self.only_with) & set(given):
            raise click.UsageError(f"{own} has no effect without {' or '.join(self.only_with)}.", ctx)
        for other in self.not_with:
            if other in given:
                raise click.UsageError(f"{own} and {other} exclude each other.", ctx)


dependent_option = partial(click.option, cls=DependentOption)
"""As click.option, with `only_with` and `not_with`."""


def _given_words(command: click.Command, opts: Mapping[str, Any]) -> list[str]:
    """Return the options and arguments that the command line has, with every spelling of an option."""
    words: list[str] = []
    for param in command.params:
        value = opts.get(param.name or "")
        if isinstance(param, click.Option):
            words += param.opts if param.name in opts else []
        elif isinstance(value, str | tuple) and value:  # the parser has an entry for an argument that is not given
            words.append(param.human_readable_name.strip("[]."))
    return words
