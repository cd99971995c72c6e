"""The command line: parse, call, print. Each verb lives in a file of its own, imported when it is called."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import traceback
from pathlib import Path

import click

from opsctl import __version__
from opsctl.errors import OpsctlError

COMMANDS: dict[str, tuple[str, str]] = {
    "sandbox": ("opsctl.cli.sandbox:sandbox", "A private, real Slurm on this machine."),
    "launch": ("opsctl.cli.launch:launch", "Check, render and submit a train."),
    "preflight": ("opsctl.cli.preflight:preflight", "Every known mistake, before it costs a queue slot."),
    "status": ("opsctl.cli.status:status", "What runs, what waits and why, step, loss, ETA."),
    "logs": ("opsctl.cli.logs:logs", "Show and follow a train's log."),
    "report": ("opsctl.cli.report:report", "Effective time, and where the rest of it went."),
    "why": ("opsctl.cli.why:why", "What ended a task, on which node and rank, and what to do."),
    "stacks": ("opsctl.cli.stacks:stacks", "Where every rank is: which are the odd ones."),
    "nccl": ("opsctl.cli.nccl:nccl", "Who could not connect to whom, which rank is behind."),
    "hold": ("opsctl.cli.queue:hold", "Keep what is queued from starting, and its place in the queue."),
    "release": ("opsctl.cli.queue:release", "Let a held train go on."),
    "cancel": ("opsctl.cli.queue:cancel", "Cancel a train, or one task of it."),
    "edit": ("opsctl.cli.edit:edit", "Change what the next task will run."),
    "kill-switch": ("opsctl.cli.switches:kill_switch", "Stop a train cleanly: save, leave, cancel what is queued."),
    "save-switch": ("opsctl.cli.switches:save_switch", "Have a train save a checkpoint now and go on."),
    "guard": ("opsctl.cli.guard:guard", "What a batch job becomes: runs the body, honours switches, finalizes."),
    "watch": ("opsctl.cli.watch:watch", "Look at trains, nodes, disks and cron; tell people what has changed."),
    "health": ("opsctl.cli.health:health", "How nodes are, with the evidence."),
    "test-nodes": ("opsctl.cli.test_nodes:test_nodes", "Do nodes work together, and if not, which is it?"),
    "nodes": ("opsctl.cli.nodes:nodes", "State, reason, whose drain, since when, which train, lemon score."),
    "drain-bad-nodes": ("opsctl.cli.nodes:drain_bad_nodes", "Take bad nodes out of service, or keep trains from them."),
    "undrain-good-nodes": ("opsctl.cli.nodes:undrain_good_nodes", "Put nodes back that are well again."),
    "exec": ("opsctl.cli.exec:exec_", "Run a command on many nodes; equal answers are shown once."),
    "cron": ("opsctl.cli.cron:cron", "What is done while nobody looks."),
    "alerts": ("opsctl.cli.alerts:alerts", "What is open, who is told, what nobody wants to hear."),
    "metrics": ("opsctl.cli.metrics:metrics", "The figures of all trains, for Prometheus."),
    "publish": ("opsctl.cli.publish:publish", "Copy logs, curves and reports to where others see them."),
    "config": ("opsctl.cli.config:config", "Starter files, checks, every key, JSON schemas."),
    "plan": ("opsctl.cli.plan:plan", "Sizes, memory, topologies, time, cost, failures: worked out beforehand."),
    "checkpoint": ("opsctl.cli.checkpoint:checkpoint", "List, verify, prune, shrink, export, offload checkpoints."),
    "doctor": ("opsctl.cli.doctor:doctor", "Is everything here that opsctl needs?"),
    "completion": ("opsctl.cli.completion:completion", "Shell completion."),
}
"""Every verb: where it attempts and what it is for. Adding one is one line here and one file."""
NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE,
                      errno.ENOTCONN, errno.ETIMEDOUT, errno.ENAMETOOLONG})  # fmt: skip
"""What a file system may do to any verb: said in a line, and no bug in opsctl."""


class CommandGroup(click.Group):
    """Knows every verb's name and purpose without importing any of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, purpose) for verb, (_, purpose) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            from difflib import get_close_matches  # noqa: PLC0415 (only for a typo)

            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--site", type=click.Path(path_type=Path), help="site.toml to use instead of the one that is found.")
@click.version_option(__version__)
@click.pass_context
def cli(ctx: click.Context, site: Path | None) -> None:
    """Keep a months-long training run alive on a Slurm cluster.

    \b
    opsctl sandbox up --nodes 4      a private, real Slurm to try things on
    opsctl config init               a commented TRAIN.toml and site.toml to start from
    opsctl launch TRAIN.toml         check, render and submit it
    opsctl status                    what runs, what waits and why
    """
    if os.environ.get("NO_COLOR"):  # which rich honours, and click does not
        ctx.color = False
    if ctx.obj is None:
        ctx.obj = _LazyApp(site)


class _LazyApp:
    """Stands for the App until a verb wants something of it: `--help` should not read settings."""

    def __init__(self, site: Path | None) -> None:
        self._site = site
        self._app: object | None = None

    def __getattr__(self, name: str) -> object:
        if self._app is None:
            from opsctl.app import build  # noqa: PLC0415 (pydantic and all, which --help can do without)

            self._app = build(self._site)
        return getattr(self._app, name)


def main() -> None:
    """The console script: exit 0 done, 1 expected failure, 2 your input, 3 our bug, 75 try again, 130 Ctrl-C."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What this terminal cannot show, and half characters of names and logs, are no reason to end.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except OpsctlError as error:
        _complain(error.message)
        if error.hint:
            click.echo("".join(f"        {line}\n" for line in error.hint.splitlines()), nl=False, err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 (the outermost place: our bug, told as such)
        if not (isinstance(error, OSError) and error.errno in NOT_OURS):
            sys.exit(_our_bug(error))
        _complain(": ".join(filter(None, (str(error.filename or ""), error.strerror))))
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> None:
    from opsctl.telemetry.logs.log_lines import for_terminal  # noqa: PLC0415 (only where something is wrong)

    lines = message.split("\n")
    if sys.stderr.isatty():
        lines = [for_terminal(line.encode(errors="replace")) for line in lines]
    click.echo("opsctl: " + "\n".join(lines), err=True)


def _our_bug(error: Exception) -> int:
    """Put the traceback where it can be sent from, and say where."""
    import tempfile  # noqa: PLC0415 (only for a bug)

    handle, path = tempfile.mkstemp(prefix="opsctl-bug-", suffix=".log")
    with os.fdopen(handle, "w") as file:
        file.write(f"opsctl {__version__}, Python {sys.version}\n{' '.join(map(repr, sys.argv))}\n\n")
        traceback.print_exception(error, file=file)
    click.echo(
        f"opsctl: this is a bug in opsctl: {type(error).__name__}: {error}\n        the traceback is in {path}",
        err=True,
    )
    return 3
