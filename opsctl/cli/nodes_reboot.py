"""`opsctl nodes reboot`: reboot nodes once their jobs have ended."""

from __future__ import annotations

from contextlib import suppress

import click

from opsctl.app import App
from opsctl.base.errors import OpsctlError, SlurmError, Unreachable
from opsctl.cli.node_view import NodeView, check_named, max_option
from opsctl.cli.output import app_json_and_dry_run, print_result
from opsctl.nodes.drain_plan import find_amended, has_changed, is_ours, plan_reboot
from opsctl.state.lease import lease


@click.command()
@click.argument("nodes", callback=check_named)
@click.option("--reason", default="requested manually", show_default=True, help="Reason that Slurm shows.")
@max_option
@app_json_and_dry_run
def reboot(app: App, nodes: str, *, reason: str, most: str, dry_run: bool) -> None:
    """Reboot nodes once their jobs have ended.

    Runs `scontrol reboot ASAP`: NODES get no new job, reboot after their last job, and return to service. Reboots no
    more nodes than health.drain_max and health.drain_percent allow, and no node that was drained by others.

    Needs a RebootProgram in slurm.conf and operator rights. Exit 1 if a reboot was refused.

    \b
    opsctl nodes reboot node[003-004] --reason "Xid 79" --dry-run
    """
    view = NodeView(app)
    excluded = frozenset(exclusion.node for exclusion in app.exclusions.now())
    records = {node.name: app.history.read(node.name) for node in view.nodes if is_ours(node)}
    plan = plan_reboot(
        view.chosen(nodes),
        view.nodes,
        app.site.health,
        why=reason,
        excluded=excluded,
        amended=find_amended(view.nodes, records, app.slurm.reasons()),
        most=most,
    )
    done: dict[str, str] = {}
    for step in () if dry_run else plan.steps:
        now = next((node for node in app.slurm.nodes() if node.name == step.node), None)
        done[step.node] = has_changed(step, now) or _reboot(app, step.node, step.reason)
    lines = []
    for step in plan.steps:
        error = done.get(step.node, "")
        outcome = "not rebooted" if error else "reboots when its jobs have ended"
        lines.append(f"{step.node}: {'would reboot' if dry_run else outcome}: {error or step.reason}")
    lines += [f"leave {left.node}: {left.why}" for left in plan.left]
    data = {"plan": plan, "done": [{"node": node, "error": error} for node, error in done.items()]}
    print_result(data, "\n".join(lines))
    if any(done.values()) or (plan.left and not plan.steps):
        click.get_current_context().exit(1)


def _reboot(app: App, node: str, reason: str) -> str:
    with suppress(OpsctlError, OSError):  # an unwritable history must not stop the reboot
        app.history.site.create()
        with lease(app.history.site.nodes, app.clock):
            app.history.note_reason(node, reason, is_reboot=True)
    try:
        app.slurm.reboot(node, reason)
    except Unreachable:
        raise
    except SlurmError as error:
        return error.message
    return ""
