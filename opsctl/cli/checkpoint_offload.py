"""`opsctl checkpoint offload`, and helpers of the other checkpoint commands."""

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from opsctl.app import App
from opsctl.base.errors import InputError, OpsctlError, RunDirError
from opsctl.base.units import format_size
from opsctl.checkpoints import catalog, offload
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.options import Duration
from opsctl.cli.output import app_json_and_dry_run, print_result, train_argument
from opsctl.state.lease import HeldLease, lease
from opsctl.state.run_dir import RunDir
from opsctl.trainer.manifest import Checkpoint

_KEEP_LEASE_S = 30.0
program_option = partial(dependent_option, not_with=("--to",))
"""An option for a copy by programs."""


@click.command("offload")
@train_argument
@click.option("--to", type=click.Path(path_type=Path), help="Target directory; copies go to TRAIN/ in it.")
@click.option("--push", default="", help="Command that copies the files in {files} from {source}.")
@program_option("--sums", default="", help="Command that prints SHA-256 and path of every copied file.")
@dependent_option(
    "--keep-local",
    not_with=("--copy-only",),
    type=click.IntRange(min=2),
    default=2,
    show_default=True,
    help="Number of newest checkpoints to keep here.",
)
@click.option("--copy-only", is_flag=True, help="Copy only; remove nothing here.")
@program_option("--timeout", type=Duration(), default="12h", show_default=True, help="Time limit of one command.")
@app_json_and_dry_run
def offload_(
    app: App,
    train: str,
    *,
    to: Path | None,
    push: str,
    sums: str,
    keep_local: int,
    copy_only: bool,
    timeout: timedelta,
    dry_run: bool,
) -> None:
    """Copy checkpoints of TRAIN elsewhere and verify the copies.

    Copies only checkpoints that verify, and removes older ones here once their copies verify. An interrupted offload
    continues at the next call; an incomplete copy is never counted as a checkpoint.

    \b
    opsctl checkpoint offload tiny-gpt --to /archive --dry-run
    opsctl checkpoint offload tiny-gpt \\
      --push 'rclone copy --files-from {files} {source} store:runs/{train}/{name}' \\
      --sums 'rclone hashsum sha256 --download store:runs/{train}/{name}'
    opsctl checkpoint offload tiny-gpt \\
      --push 'rsync -a --partial --mkpath --files-from={files} {source} vault:/runs/{train}/{name}/' \\
      --sums 'ssh vault "cd /runs/{train}/{name} && find . -type f -print0 | xargs -0 sha256sum"'
    """
    run = ours(app, train)
    destination = _destination(app, run, to, push=push, sums=sums, timeout=timeout)
    plan = offload.plan(run.checkpoints, destination.label, keep_local=keep_local)
    if dry_run:
        _print_plan(run, plan, copy_only=copy_only)
        return
    copied: list[Checkpoint] = []
    failed: list[OpsctlError] = []
    total = sum(offload.size(checkpoint) for checkpoint in plan.copies)
    with leased(run, app) as held, _progress(total) as report_bytes:
        leftovers = catalog.sweep(run.checkpoints)
        report_and_refresh = _refreshing(held, app, report_bytes)
        for checkpoint in plan.copies:
            try:
                offload.offload(checkpoint, destination, app.clock, report_and_refresh)
                copied.append(checkpoint)
            except (offload.CopyFailed, catalog.Damaged) as error:
                failed.append(error)
        planned = [] if copy_only else offload.removable(plan, destination.label)
        removed, not_removed = catalog.remove(planned)
    failures = [*(error.message for error in failed), *leftovers, *not_removed]
    data = {
        "copied": [checkpoint.step for checkpoint in copied],
        "removed": [checkpoint.step for checkpoint in removed],
        "to": destination.label,
        "failed": failures,
    }
    print_result(data, f"{run.name}: copied {steps(copied)} to {destination.label}; removed {steps(removed)} here")
    if failures:
        raise OpsctlError("\n".join(failures), hint=(failed[0].hint if failed else None) or recheck(run))


def _destination(
    app: App, run: RunDir, to: Path | None, *, push: str, sums: str, timeout: timedelta
) -> offload.Destination:
    if (to is None) == (not push):
        raise InputError("needs either --to DIRECTORY, or --push and --sums")
    if to is not None:
        return offload.Directory(path=to / run.name)
    return offload.Program(
        push=tuple(shlex.split(push)),
        sums=tuple(shlex.split(sums)),
        train=run.name,
        runner=app.runner,
        timeout=timeout.total_seconds(),
    )


def _print_plan(run: RunDir, plan: offload.OffloadPlan, *, copy_only: bool) -> None:
    gone = () if copy_only else plan.removals
    total = sum(offload.size(checkpoint) for checkpoint in plan.copies)
    data = {
        "would_copy": [checkpoint.step for checkpoint in plan.copies],
        "would_remove": [checkpoint.step for checkpoint in gone],
        "bytes": total,
    }
    text = f"would copy {steps(plan.copies)}, {format_size(total)}; would remove {steps(gone)} here"
    print_result(data, f"{run.name}: {text}")


def ours(app: App, train: str) -> RunDir:
    run = app.find(train)
    if not run.is_ours:
        raise RunDirError(f"{run.path}: belongs to another user; only the owner can change its checkpoints")
    return run


def leased(run: RunDir, app: App) -> contextlib.AbstractContextManager[HeldLease]:
    """Hold the lease of the checkpoints, so that no other command removes or offloads them meanwhile.

    The trainer may still prune; pruned checkpoints are reported as gone.
    """
    run.checkpoints.mkdir(exist_ok=True)
    return lease(run.checkpoints, app.clock)


def recheck(run: RunDir) -> str:
    """Return the advice for damaged checkpoints."""
    return (
        f"opsctl checkpoint verify {run.name} checks again;\n"
        f"move damaged checkpoints out of {run.checkpoints}: no attempt starts while the newest cannot be read"
    )


def _refreshing(held: HeldLease, app: App, report_bytes: offload.ReportBytes) -> offload.ReportBytes:
    """Return a progress callback that also refreshes the lease."""
    last = app.clock.monotonic()

    def refreshing(done: int) -> None:
        nonlocal last
        report_bytes(done)
        if app.clock.monotonic() - last > _KEEP_LEASE_S:
            last = app.clock.monotonic()
            held.refresh()

    return refreshing


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr if stderr is a terminal."""
    from rich import progress  # noqa: PLC0415 (only for the bar)

    sizes = (progress.DownloadColumn(), progress.TransferSpeedColumn(), progress.TimeRemainingColumn())
    columns = (progress.TextColumn("copying"), progress.BarColumn(), *sizes)
    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    with progress.Progress(*columns, console=console, transient=True, disable=console.quiet) as bar:
        task = bar.add_task("copying", total=total)
        yield lambda done: bar.advance(task, done)


def steps(checkpoints: Sequence[Checkpoint]) -> str:
    return "step " + ", ".join(str(checkpoint.step) for checkpoint in checkpoints) if checkpoints else "nothing"
