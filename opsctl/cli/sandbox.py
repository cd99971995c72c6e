"""`opsctl sandbox`: a private, real Slurm on this machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opsctl.base.units import format_duration, format_size
from opsctl.cli.command_names import SuggestingGroup
from opsctl.cli.output import app_and_json, print_result, print_text
from opsctl.host import log_config
from opsctl.sandbox.cluster import Sandbox, SandboxStatus
from opsctl.sandbox.faults import FaultKind
from opsctl.sandbox.namespaces import run_inside, run_private
from opsctl.sandbox.record import Places
from opsctl.sandbox.slurm_conf import SandboxSpec

if TYPE_CHECKING:
    from opsctl.app import App

F = TypeVar("F", bound=Callable[..., Any])


def size_options(command: F) -> F:
    """Add the options that size a new sandbox."""
    for option in (
        click.option("--fast", is_flag=True, help="Short timers: a dead node is down within seconds."),
        click.option("--accounting", is_flag=True, help="Start slurmdbd and MariaDB, so that sacct works."),
        click.option(
            "--gpus-per-node", default=2, show_default=True, help="GPUs that Slurm counts; no real GPU is needed."
        ),
        click.option("--nodes", default=4, show_default=True, help="Number of nodes (real slurmds)."),
    ):
        command = option(command)
    return command


name_option = click.option(
    "--name", default="default", show_default=True, help="Name of the sandbox; several can be up."
)


@click.group(cls=SuggestingGroup)
def sandbox() -> None:
    """Run a private, real Slurm on this machine.

    \b
    opsctl sandbox up --nodes 8            start in the background
    eval "$(opsctl sandbox env)"; sinfo    use the sandbox from this shell
    opsctl sandbox fault node003 kill      inject a fault
    opsctl sandbox down                    stop and remove the sandbox
    opsctl sandbox run -- srun -N4 hostname
    opsctl sandbox run                     open your shell on a temporary sandbox
    """


@sandbox.command()
@size_options
@name_option
@app_and_json
def up(app: App, /, name: str, **size: Any) -> None:
    """Start a sandbox in the background.

    A sandbox that is up does not change.

    \b
    opsctl sandbox up --nodes 8 --fast
    opsctl sandbox up --name night-1 --accounting
    """
    log_config.show_progress()
    started = app.clock.monotonic()
    cluster = Sandbox.up(SandboxSpec(name=name, **size), clock=app.clock, runner=app.runner)
    took_s, spec, is_shared = app.clock.monotonic() - started, cluster.record.spec, cluster.record.site.shared
    result = "it was up already" if cluster.was_up else f"up in {format_duration(took_s)}"
    words = "" if name == "default" else f" --name {name}"
    lines = [
        f"sandbox {name!r}: {spec.describe()}; {result}",
        f'to use it from this shell:  eval "$(opsctl sandbox env{words})"',
    ]
    if is_shared:
        lines.append(f"other users of this machine may submit jobs to it:  export SLURM_CONF={cluster.conf}")
    start = {"was_up": cluster.was_up, "seconds": took_s, "env": cluster.env(), "shared": is_shared}
    print_result({**asdict(spec), **start}, "\n".join(lines))


@sandbox.command()
@name_option
@app_and_json
def down(app: App, name: str) -> None:
    """Stop a sandbox and remove its files.

    Ends every process of the sandbox, jobs included.

    \b
    opsctl sandbox down
    opsctl sandbox down --name night-1
    """
    log_config.show_progress()
    ended = Sandbox.end(name, clock=app.clock)
    text = f"sandbox {name!r} was not up; no files are left"
    if ended.count:
        text = f"sandbox {name!r} is down: {ended.count} processes ended, none left"
    print_result({"name": name, "ended": ended.count}, text)


@sandbox.command()
@click.option("--name", help="Show only this sandbox.")
@app_and_json
def status(app: App, *, name: str | None) -> None:
    """Show the sandboxes that are up.

    For each sandbox: nodes, processes, memory and uptime.

    \b
    opsctl sandbox status
    """
    names = [name] if name else Places.default().names()
    statuses = [Sandbox.open(sandbox_name, clock=app.clock, runner=app.runner).status() for sandbox_name in names]
    print_result(statuses, "\n".join(map(describe, statuses)) or "no sandbox is up; opsctl sandbox up")


def describe(status: SandboxStatus) -> str:
    states = sorted(set(status.nodes.values()))
    counts = ", ".join(f"{list(status.nodes.values()).count(state)} {state}" for state in states)
    silent = "its controller does not answer" if status.is_up else "its controller does not run"
    lines = [
        f"{status.name}: {counts or silent}",
        f"  {status.processes} processes, {format_size(status.memory_bytes)}, up {format_duration(status.uptime_s)}",
        f"  SLURM_CONF={status.conf}",
    ]
    if status.dead:
        lines.append(f"  not running: {', '.join(status.dead)}")
    return "\n".join(lines)


@sandbox.command()
@name_option
@click.pass_obj
def env(app: App, name: str) -> None:
    """Print the environment variables of a sandbox.

    \b
    eval "$(opsctl sandbox env)"
    """
    for key, value in Sandbox.open(name, clock=app.clock, runner=app.runner).env().items():
        print_text(f"export {key}={shlex.quote(value)}")


@sandbox.command(context_settings={"allow_interspersed_args": False})
@size_options
@click.option(
    "--inside", type=click.Path(path_type=Path), hidden=True, help="Directory of the sandbox, inside the namespaces."
)
@click.argument("command", nargs=-1)
@click.pass_context
def run(ctx: click.Context, /, inside: Path | None, command: tuple[str, ...], **size: Any) -> None:
    """Run COMMAND, or your shell, on a temporary sandbox.

    The sandbox ends with COMMAND and leaves no files. The exit code is that of COMMAND.

    \b
    opsctl sandbox run --nodes 8 -- srun -N8 hostname
    opsctl sandbox run --nodes 2                open your shell
    """
    app, spec = ctx.obj, SandboxSpec(name="run", **size)
    command = command or (os.environ.get("SHELL") or "/bin/sh",)
    if inside:
        ctx.exit(run_inside(spec, command, inside, clock=app.clock, runner=app.runner))
    ctx.exit(run_private(spec, command, clock=app.clock, runner=app.runner, warn=warn))


@sandbox.command()
@click.argument("target", metavar="NODE|controller")
@click.argument("action", type=click.Choice([action.value for action in FaultKind]))
@name_option
@app_and_json
def fault(app: App, target: str, action: str, name: str) -> None:
    """Inject a fault into a sandbox.

    \b
    opsctl sandbox fault node003 kill       SIGKILL the slurmd; running steps continue
    opsctl sandbox fault node003 crash      simulate power loss: end slurmd and all steps
    opsctl sandbox fault node003 stop       SIGSTOP the slurmd, until `resume`
    opsctl sandbox fault node003 restart    start the slurmd again
    opsctl sandbox fault controller kill    SIGKILL slurmctld
    """
    log_config.show_progress()
    Sandbox.open(name, clock=app.clock, runner=app.runner).fault(target, FaultKind(action))
    print_result({"name": name, "target": target, "action": action}, f"{target}: {action} done")


def warn(text: str) -> None:
    click.echo(f"opsctl: {text}", err=True)
