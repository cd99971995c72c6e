"""`opsctl nodes`, `drain-bad-nodes`, `undrain-good-nodes`."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict

import click

from opsctl.app import App
from opsctl.base.errors import OpsctlError, SlurmError, Unreachable
from opsctl.base.nodesets import fold
from opsctl.base.tables import read_package_table
from opsctl.cli.health import describe_verdicts
from opsctl.cli.node_view import NodeView, all_option, check_named, max_option, partition_option, train_option
from opsctl.cli.output import (
    app_and_json,
    app_json_and_dry_run,
    make_table,
    print_parts,
    print_result,
    print_unless_json,
    report_problems,
    wants_json,
)
from opsctl.cron.cron_dir import IN_CRON
from opsctl.nodes.drain import NodeAction, Quarantine, count_needed_nodes, keep_report, report
from opsctl.nodes.drain_plan import (
    PREFIX,
    NodePlan,
    find_amended,
    has_changed,
    is_listed,
    is_ours,
    is_out,
    plan_drain,
    plan_reboot,
    plan_undrain,
)
from opsctl.nodes.health import end_orphans
from opsctl.nodes.health.node_checker import CheckedNodes
from opsctl.nodes.node_score import node_score
from opsctl.nodes.slow_nodes import NodeSpeed
from opsctl.state.lease import lease


@click.command()
@click.argument("nodes", callback=check_named)
@click.option("--reason", default="requested manually", show_default=True, help="Reason that Slurm shows.")
@max_option
@app_json_and_dry_run
def reboot(app: App, nodes: str, *, reason: str, most: str, dry_run: bool) -> int:
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
    return int(any(done.values()) or (bool(plan.left) and not plan.steps))


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


MAX_TRAINS_SHOWN = 3
"""Trains per node in the table. JSON lists all."""


COLUMNS: dict[str, str] = read_package_table("cli/nodes.toml")["columns"]
"""Titles of the table by key."""


class _DefaultsToList(click.Group):
    """Group in which `opsctl nodes [NODES]` means `opsctl nodes list [NODES]`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names_command = args and (args[0] in self.commands or args[0] in self.get_help_option_names(ctx))
        return super().parse_args(ctx, args if names_command else ["list", *args])


@click.group(cls=_DefaultsToList)
def nodes() -> None:
    """Show nodes, drain reasons and flaky-node scores.

    \b
    opsctl nodes
    opsctl nodes node[001-004] --json
    opsctl nodes reboot node003 --dry-run
    """


nodes.add_command(reboot)


@nodes.command("list")
@click.argument("nodes", required=False, default="")
@click.option("--bad", is_flag=True, help="Show only nodes out of service, excluded or flaky.")
@app_and_json
def list_(app: App, nodes: str, *, bad: bool) -> int:
    """Show nodes, drain reasons and flaky-node scores.

    For each node: state, trains, health, score, and since when, by whom and why the node is out of service.
    Where its ranks measured step times, also its step time relative to the other nodes of its attempts; --bad does not
    list slow nodes. Exit 1 if a stored history cannot be read.

    \b
    opsctl nodes list --bad
    opsctl nodes node[001-004] --json
    """
    view = NodeView(app)
    chosen = set(view.chosen(nodes, every=True))
    speeds = app.history.list_speeds(app.site.health.flaky_days)
    rows = [row for row in _rows(app, view, speeds) if row["node"] in chosen]
    if bad:
        rows = [row for row in rows if row["is_out"] or row["is_flaky"] or row["excluded"]]
    columns = {key: title for key, title in COLUMNS.items() if key != "step_time" or any(row[key] for row in rows)}
    cells = []
    for row in rows:
        node = str(row["node"])
        shown = {**row, "trains": shorten(view.trains_on.get(node, [])), "step_time": speeds.get(node)}
        cells.append([str(shown[key] or "") for key in columns])
    print_result(rows, make_table(cells, list(columns.values())))
    return report_problems(app.history.list_unreadable())


def shorten(trains: Sequence[str]) -> str:
    """Return the first few names, and the number of the others."""
    more = len(trains) - MAX_TRAINS_SHOWN
    return ", ".join(trains[:MAX_TRAINS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _rows(app: App, view: NodeView, speeds: Mapping[str, NodeSpeed]) -> list[dict[str, object]]:
    reasons = {reason.node: reason for reason in app.slurm.reasons()}
    records = {node_record.node: node_record for node_record in app.history.all()}
    cards, now, site = app.history.cards(), app.clock.now(), app.site.health
    excluded = {exclusion.node: exclusion for exclusion in app.exclusions.shown()}
    rows: list[dict[str, object]] = []
    for node in view.nodes:
        record, why = records.get(node.name), reasons.get(node.name)
        points = node_score(record, cards, now, site.flaky_days) if record else 0.0
        exclusion = excluded.get(node.name)
        text = node.reason or (f"excluded from our trains: {exclusion.reason}" if exclusion else "")
        rows.append(
            {
                "node": node.name,
                "state": node.state,
                "trains": view.trains_on.get(node.name, []),
                "health": record.health if record else "",
                "flakiness": f"{points:g}" if points else "",
                "is_flaky": points >= site.flaky_score,
                "is_out": is_out(node),
                "is_ours": is_ours(node),
                "excluded": exclusion is not None,
                "since": f"{why.at:%Y-%m-%d %H:%M}" if why and why.at else "",
                "by": why.by if why else "",
                "reason": text,
                "step_time": asdict(speeds[node.name]) if node.name in speeds else None,
            }
        )
    return rows


@click.command("drain-bad-nodes")
@click.argument("nodes", required=False, default="")
@train_option
@partition_option
@all_option
@max_option
@app_json_and_dry_run
def drain_bad_nodes(app: App, nodes: str, *, train: str, partition: str, every: bool, most: str, dry_run: bool) -> None:
    """Take faulty and degraded nodes out of service.

    Checks NODES, or the nodes of running trains, shows the plan, then drains: no new job starts there. Drains no more
    nodes than health.drain_max and health.drain_percent allow, no node that was drained by others, and no node that
    could not be checked.

    Without the right to drain, opsctl excludes the nodes from its own trains and writes a report for the
    administrators.

    \b
    opsctl drain-bad-nodes --dry-run
    opsctl drain-bad-nodes --partition gpu --max 2
    """
    view = NodeView(app)
    checked = view.check(view.chosen(nodes, train=train, partition=partition, every=every), train=train)
    cards, now, days = app.history.cards(), app.clock.now(), app.site.health.flaky_days
    scores = {name: node_score(record, cards, now, days) for name, record in checked.records.items()}
    excluded = frozenset(exclusion.node for exclusion in app.exclusions.now())
    plan = plan_drain(
        checked.verdicts,
        view.nodes,
        app.site.health,
        scores=scores,
        demands=_count_demands(view),
        excluded=excluded,
        most=most,
    )
    done: list[NodeAction] = []
    if not wants_json():
        print_parts(*describe_verdicts(checked.verdicts))
    _print_plan(plan, "drain")
    if (plan.steps or plan.left) and not dry_run and not _propose(app, plan):
        done = _quarantine(app, view).drain(plan)
    is_excluded = any(node_action.action == "excluded" for node_action in done)
    text = report(plan, checked.records.values(), now) if is_excluded else ""
    _finish(plan, done, checked, dry_run=dry_run, text=text)
    if text:
        path = keep_report(app.history.site, text)
        print_unless_json(f"report for the administrators, also written to {path}:\n\n{text}")


def _count_demands(view: NodeView) -> dict[str, int]:
    """Return the number of nodes that our queued and running trains need, by train."""
    demands = {}
    for arrays in view.all_arrays:
        with suppress(OpsctlError, OSError):
            if arrays.check(view.jobs).is_queued:
                demands[arrays.run.name] = count_needed_nodes(arrays)
    return demands


@click.command("undrain-good-nodes")
@click.argument("nodes", required=False, default="")
@click.option("--kill-orphans", is_flag=True, help="End orphan processes that hold a GPU of an idle node first.")
@app_json_and_dry_run
def undrain_good_nodes(app: App, nodes: str, *, kill_orphans: bool, dry_run: bool) -> None:
    """Return healthy nodes to service.

    Returns nodes that opsctl drained and that passed two checks in a row, and nodes that Slurm drained for a reason in
    health.undrain_reasons once no user process is left on them. A node whose reason a person has amended stays drained.

    \b
    opsctl undrain-good-nodes --dry-run
    opsctl undrain-good-nodes node003 --kill-orphans
    """
    view = NodeView(app)
    chosen = set(view.chosen(nodes, every=True))
    out = [node for node in view.nodes if node.name in chosen and (is_ours(node) or is_listed(node, app.site.health))]
    names = [node.name for node in out if node.name in view.reachable]
    checked = view.check(names)
    if kill_orphans and not dry_run and _end_orphans(app, view, checked):
        checked = view.check(names)
    reasons = [reason for reason in app.slurm.reasons() if reason.at and reason.text.startswith(PREFIX)]
    plan = plan_undrain(
        checked.verdicts,
        out,
        app.site.health,
        records=checked.records,
        snapshots=checked.snapshots,
        since={reason.node: reason.at.timestamp() for reason in reasons if reason.at},
        amended=find_amended(out, {node.name: app.history.read(node.name) for node in out}, reasons),
    )
    _print_plan(plan, "undrain")
    done = [] if dry_run or not plan.steps else _quarantine(app, view).undrain(plan)
    _finish(plan, done, checked, dry_run=dry_run)


def _end_orphans(app: App, view: NodeView, checked: CheckedNodes) -> bool:
    ended = False
    idle = {node.name for node in view.nodes if node.name not in view.trains_on and "DRAINING" not in node.state}
    for name, snapshot in checked.snapshots.items():
        node_processes = end_orphans.find_orphans(snapshot, app.site.health)
        if name in idle and node_processes:
            answer = end_orphans.end_orphans(view.fanout(), snapshot, node_processes)
            ended = ended or bool(answer.out.split())
            which = ", ".join(answer.out.split()) or "nothing"
            print_unless_json(f"{name}: ended {which}{f' ({answer.problem})' if answer.problem else ''}")
    return ended


def _quarantine(app: App, view: NodeView) -> Quarantine:
    history, exclusions = app.history, app.exclusions
    return Quarantine(
        slurm=app.slurm, history=history, exclusions=exclusions, site=app.site.health, all_arrays=view.all_arrays
    )


def carry_out(app: App, view: NodeView, plan: NodePlan, *, dry_run: bool) -> None:
    """Print a drain plan, and carry it out unless this is a dry run."""
    _print_plan(plan, "drain")
    for node_action in [] if dry_run or not plan.steps or _propose(app, plan) else _quarantine(app, view).drain(plan):
        print_unless_json(f"{node_action.node}: {node_action.action}: {node_action.why}")


def _propose(app: App, plan: NodePlan) -> bool:
    """Record drains that `[policy]` leaves to a person, where cron runs the command; return whether there are any."""
    if app.site.policy.drain == "act" or IN_CRON not in os.environ or not plan.steps:
        return False
    nodes = fold(step.node for step in plan.steps)
    app.alerting.ledger.journal("drain-proposed", nodes=nodes, why=[step.reason for step in plan.steps])
    print_unless_json(f"proposed to drain; to do it: opsctl drain-bad-nodes {nodes}")
    return True


def _print_plan(plan: NodePlan, action: str) -> None:
    lines = [f"{action} {step.node}: {step.reason}" for step in plan.steps]
    lines += [f"leave {left.node}: {left.why}" for left in plan.left]
    lines += [f"note: after this drain {note}" for note in plan.notes]
    lines += [] if plan.steps else [f"nothing to {action}"]
    print_unless_json("\n".join(lines))


def _finish(
    plan: NodePlan, done: Sequence[NodeAction], checked: CheckedNodes, *, dry_run: bool, text: str = ""
) -> None:
    if not wants_json():
        report_problems(checked.problems)
    lines = ["a dry run: nothing was done"] * (dry_run and bool(plan.steps))
    for node_action in done:
        why = f": {node_action.why}" if node_action.action != "undrained" else ""
        lines.append(f"{node_action.node}: {node_action.action}{why}")
    print_result({"plan": plan, "done": done, "report": text, "problems": checked.problems}, *lines)
