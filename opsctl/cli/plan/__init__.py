"""`opsctl plan`: estimate sizes, memory, layouts, time, cost and failures of a run."""

from pathlib import Path

import click

from opsctl.cli.command_names import SuggestingGroup, suggest
from opsctl.cli.plan.checkpoints import checkpoint
from opsctl.cli.plan.failures import simulate, spares
from opsctl.cli.plan.model_size import memory, model
from opsctl.cli.plan.overview import overview
from opsctl.cli.plan.topologies import topology
from opsctl.cli.plan.training_time import network, throughput


class _PlanGroup(SuggestingGroup):
    """A group whose first word may be a model: `opsctl plan MODEL` is `opsctl plan overview MODEL`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        has_options = bool(args) and args[0].startswith("--") and args[0] not in ctx.help_option_names
        return super().parse_args(ctx, ["overview", *args] if has_options else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_other = bool(args) and args[0] not in self.commands and not args[0].startswith("-")
        if is_other and (ctx.resilient_parsing or Path(args[0]).exists() or not suggest(("plan", args[0]), ctx)):
            args = ["overview", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=_PlanGroup)
def plan() -> None:
    """Estimate sizes, memory, layouts, time and cost.

    With a model in place of a command, runs `overview`.

    \b
    opsctl plan overview llama-3-70b --gpus 512 --gpu H100
    opsctl plan model --model bloom
    opsctl plan topology --model bloom --nodes 48 --gpu A100 --batch 2048
    opsctl plan simulate --nodes 48 --queue 2 --task 20
    """


for command in (overview, model, memory, topology, throughput, network, checkpoint, spares, simulate):
    plan.add_command(command)
