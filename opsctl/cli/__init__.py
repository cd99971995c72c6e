"""The command line: the table of commands, the groups of `opsctl --help`, and how errors are shown.

The module of a command is imported when the command is called.
"""

import importlib
import io
import os
import sys
import traceback
from errno import EACCES, EDQUOT, EIO, ENAMETOOLONG, ENOSPC, ENOTCONN, EPERM, EROFS, ESTALE, ETIMEDOUT
from pathlib import Path
from typing import NamedTuple

import click

from opsctl import __version__
from opsctl.base.errors import OpsctlError
from opsctl.cli.command_names import SuggestingGroup
from opsctl.cli.dependent_option import dependent_option

GROUPS = ("Run", "Observe", "Diagnose", "Nodes", "Automation", "Set up")
"""The sections of `opsctl --help`, in order."""
INTERNAL = ""
"""The group of commands that batch scripts call: hidden in help."""


class CommandEntry(NamedTuple):
    """Location of a command (`module:function` below opsctl.cli), section of `opsctl --help`, one-line help."""

    location: str
    group: str
    summary: str


_ROWS = (Path(__file__).parent / "commands.tsv").read_text(encoding="utf-8").splitlines()
COMMANDS = {name: CommandEntry(*fields) for name, *fields in (row.split("\t") for row in _ROWS)}
"""Every command. A new command is a line of commands.tsv and one file."""
ENVIRONMENT_ERRNOS = frozenset({EACCES, EPERM, EIO, ENOSPC, EDQUOT, EROFS, ESTALE, ENOTCONN, ETIMEDOUT, ENAMETOOLONG})
"""Errors of a file system that any command can meet: reported in one line, because they are no bug of opsctl."""
LOG_LEVELS = ("debug", "info", "warning", "error")


class CommandGroup(SuggestingGroup):
    """The commands of the table, imported only when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].location.partition(":")
        command = getattr(importlib.import_module(f"opsctl.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for group in GROUPS:
            rows = [(name.ljust(width), entry.summary) for name, entry in COMMANDS.items() if entry.group == group]
            with formatter.section(group):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.params.get("host") is not None and not ctx.resilient_parsing:
            from opsctl.cli.remote_host import remote_command  # noqa: PLC0415 (only for --host)

            return "remote", remote_command(ctx.params, args), []
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.MissingParameter as error:
            raise _name_all_missing(error) from error
        except click.NoSuchOption as error:
            option = error.option_name
            if any(option in (*param.opts, *param.secondary_opts) for param in self.params):
                place = f"{error.message} It stands before the command: opsctl {option} ... {ctx.invoked_subcommand}"
                raise click.NoSuchOption(option, place, ctx=error.ctx) from error
            raise


def _name_all_missing(error: click.MissingParameter) -> click.UsageError:
    """Return an error that names every required part that is missing; click names the first only."""
    if error.ctx is None:
        return error
    # click reads the given options first, then the arguments: a part that click has not read yet is missing.
    params = error.ctx.command.get_params(error.ctx)
    missing = [param for param in params if param.required and param.name not in error.ctx.params]
    names = [f"{param.param_type_name} {param.get_error_hint(error.ctx)}" for param in missing]
    return click.UsageError(f"Missing {', '.join(names)}.", error.ctx) if len(names) > 1 else error


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--site", type=click.Path(path_type=Path), help="Site file (default: $OPSCTL_SITE, else site.toml).")
@click.option("--trust", is_flag=True, help="Obey settings files that others could have written.")
@dependent_option(
    "-v",
    "--verbose",
    not_with=("--log-level",),
    is_flag=True,
    help="Log every step and program to stderr: --log-level debug.",
)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), help="Log from this level on to stderr (default: warning).")
@click.option("--host", metavar="HOST", help="Run the command on this host, by ssh.")
@dependent_option(
    "--host-command",
    only_with=("--host",),
    default="opsctl",
    envvar="OPSCTL_HOST_COMMAND",
    metavar="COMMAND",
    help="Its opsctl (default: $OPSCTL_HOST_COMMAND, else opsctl).",
)
@click.version_option(__version__, help="Print the version and exit.")
@click.pass_context
def cli(
    ctx: click.Context,
    /,
    site: Path | None,
    *,
    trust: bool,
    verbose: bool,
    log_level: str | None,
    **_host_options: str | None,  # CommandGroup.resolve_command reads them
) -> None:
    """Keep a months-long training run going on a Slurm cluster.

    \b
    opsctl sandbox up --nodes 4      start a private, real Slurm to try opsctl on
    opsctl init                      write a train.toml for your trainer
    opsctl launch train.toml         check, render and submit the train
    opsctl status                    show what runs and what waits
    opsctl help launch               explain one command
    opsctl --host login1 status      run the command on another machine
    """
    from opsctl.host import log_config  # noqa: PLC0415 (--help starts without logging)

    log_config.configure(log_level or ("debug" if verbose else None))
    if os.environ.get("NO_COLOR"):  # rich honours NO_COLOR, click does not
        ctx.color = False
    if ctx.obj is None:
        ctx.obj = _LazyApp(site, trust=trust)


class _LazyApp:
    """A stand-in that builds the App at its first use, so that `--help` reads no settings."""

    def __init__(self, site: Path | None, *, trust: bool) -> None:
        self._site, self._trust = site, trust
        self._app: object | None = None

    def __getattr__(self, name: str) -> object:
        if self._app is None:
            from opsctl.app import build, open_debug_log  # noqa: PLC0415 (--help starts without pydantic)

            self._app = app = build(self._site, trust=self._trust)
            open_debug_log(app)
        return getattr(self._app, name)


def main() -> None:
    """Run the command line and exit.

    Exit codes: 0 done, 1 expected failure, 2 wrong input, 3 bug in opsctl, 75 try again, 130 Ctrl-C.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Characters that the terminal cannot show, and broken characters of names and logs, must not end a command.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(prog_name="opsctl", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except OpsctlError as error:
        _log_error(error)
        _print_error(error.message, error.hint)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 (the outermost place: a bug is reported, not shown as a stack trace)
        if not (isinstance(error, OSError) and error.errno in ENVIRONMENT_ERRNOS):
            _log_error(error)
            sys.exit(_report_bug(error))
        _print_error(": ".join(filter(None, (str(error.filename or ""), error.strerror))))
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _log_error(error: Exception) -> None:
    """Write how the command failed to the debug log; of a bug with the stack trace."""
    import logging  # noqa: PLC0415 (only for an error)

    is_bug = not isinstance(error, OpsctlError)
    logging.getLogger(__name__).debug("the command failed: %s", error, exc_info=error if is_bug else None)


def _print_error(message: str, hint: str | None = None) -> None:
    """Print an error and its hint to stderr; on a terminal without control characters."""
    from opsctl.telemetry.logs.log_lines import harmless  # noqa: PLC0415 (only for an error)

    text = "\n        ".join([f"opsctl: {message}", *(hint or "").splitlines()])
    click.echo(harmless(text) if sys.stderr.isatty() else text, err=True)


def _report_bug(error: Exception) -> int:
    """Write the stack trace to a file, print where the file lies, and return the exit code."""
    import tempfile  # noqa: PLC0415 (only for a bug)

    handle, path = tempfile.mkstemp(prefix="opsctl-bug-", suffix=".log")
    with os.fdopen(handle, "w") as file:
        file.write(f"opsctl {__version__}, Python {sys.version}\n{' '.join(map(repr, sys.argv))}\n\n")
        traceback.print_exception(error, file=file)
    _print_error(f"this is a bug in opsctl: {type(error).__name__}: {error}", f"the traceback is in {path}")
    return 3
