"""`opsctl plan`: estimate sizes, memory, layouts, time, cost and failures of a run."""

from __future__ import annotations

import click

from opsctl.cli.plan.checkpoints import checkpoint, storage
from opsctl.cli.plan.failures import simulate, spares
from opsctl.cli.plan.model_size import memory, model
from opsctl.cli.plan.topologies import topology
from opsctl.cli.plan.training_time import network, throughput


@click.group()
def plan() -> None:
    """Estimate sizes, memory, layouts, time and cost.

    \b
    opsctl plan model --model bloom
    opsctl plan topology --model bloom --nodes 48 --batch 2048
    opsctl plan simulate --nodes 48 --queue 2 --task 20
    """


for command in (model, memory, topology, throughput, network, checkpoint, storage, spares, simulate):
    plan.add_command(command)
