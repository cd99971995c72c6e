"""`opsctl doctor`: check that everything opsctl needs is installed."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import click
from rich.text import Text

from opsctl.app import App, build_unchecked
from opsctl.base.errors import MissingProgram, NotTrusted, OpsctlError
from opsctl.base.extras import EXTRAS, install_command, is_installed
from opsctl.base.tables import read_package_table
from opsctl.base.units import format_duration, format_size
from opsctl.checkpoints.scan import size_of
from opsctl.cli.output import app_and_json, cell, make_table, print_result
from opsctl.preflight.security.permissions import find_offences
from opsctl.settings.loader import find_site
from opsctl.state.files import find_matches
from opsctl.state.run_dir import all_trains, check_trusted, find_entries_skipped, may_act
from opsctl.trainer.precision import SLOWDOWN_FROM_BF16, read_processor

DoctorSeverity = Literal["ok", "missing", "unsafe", "unknown", "optional"]
STYLES = {"ok": "green", "missing": "red", "unsafe": "red", "unknown": "magenta", "optional": "dim"}


MAX_SKIPPED = 10
"""Entries of the root that are named although they are no trains."""
DEMO_CORES = 2
DEMO_MEMORY_BYTES = 2 << 30
"""Four processes of the trainer took 1.6 GiB in the demo, the sandbox 0.1."""
INSTALL_BYTES = 2 << 30
"""The trainer's packages take 1.6 GiB with torch for CPUs."""
DEMO_BYTES = 100 << 20
"""The demo's corpus, checkpoints and logs take 45 MiB."""


@dataclass(frozen=True, slots=True)
class DoctorRow:
    check: str
    severity: DoctorSeverity
    result: str
    advice: str = ""
    """What the user can do: a command or a setting; empty if nothing is to be done."""


@click.command()
@click.option("--security", is_flag=True, help="Check who else could read or change what opsctl uses.")
@click.option("--keep", is_flag=True, help="Show what files take how much, and what bounds them.")
@app_and_json
def doctor(app: App, *, security: bool, keep: bool) -> int:
    """Check that everything opsctl needs is installed.

    Each row shows a check, the result, and the command that repairs it. Exit 1 if a required part is missing.

    With --security, check instead who else could read or change the settings, secrets, trains, programs and sandboxes
    that opsctl uses. Exit 1 if anything is unsafe. A thing that cannot be checked is unknown.

    With --keep, show instead how much every kind of files takes, in your trains and the site, and what bounds it.

    \b
    opsctl doctor
    opsctl doctor --security
    opsctl doctor --keep
    """
    try:
        app.root  # noqa: B018 (builds the App)
    except NotTrusted:  # a row says so
        site_file = click.get_current_context().find_root().params.get("site")
        app = build_unchecked(site_file or find_site())
    rows: list[DoctorRow] = []
    for check in [_security] * security + [_measure_files] * keep or CHECKS:
        rows += check(app)
    cells = [
        (Text(row.severity, STYLES[row.severity]), row.check, row.result, cell(row.advice, "bold")) for row in rows
    ]
    print_result(rows, make_table(cells))
    return int(any(row.severity in {"missing", "unsafe"} for row in rows))


def _security(app: App) -> Iterator[DoctorRow]:
    from opsctl.preflight.security.checks import check_security  # noqa: PLC0415 (doctor must start)

    for finding in check_security(app):
        yield DoctorRow(finding.check, finding.severity.value, finding.result, finding.repair)


def _measure_files(app: App) -> Iterator[DoctorRow]:
    """Yield what every kind of files takes in this user's trains and in the site's directory. No link is followed."""
    tables = read_package_table("cli/written_files.toml")
    places = [(run.name, run.path, tables["train"]) for run in filter(may_act, all_trains(app.root))]
    for name, place, kinds in [*places, ("site", app.site_dir.path, tables["site"])]:
        for kind in kinds:
            paths = chain.from_iterable(find_matches(place, pattern) for pattern in kind["paths"])
            try:
                sizes = [size_of(path) for path in paths if not path.is_symlink()]
            except OSError as error:
                yield DoctorRow(f"{name}: {kind['what']}", "unknown", f"{error.filename}: {error.strerror}")
                continue
            size, files = sum(size for size, _ in sizes), sum(count for _, count in sizes)
            yield DoctorRow(f"{name}: {kind['what']}", "ok", f"{format_size(size)} in {files} files", kind["bound"])


def _settings(app: App) -> Iterator[DoctorRow]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield DoctorRow("python", "ok", f"{version} at {sys.executable}")
    if app.site_path:
        yield DoctorRow("site file", "ok", str(app.site_path))
        for offence in find_offences(app.site_path, frozenset({0, os.geteuid()})):
            yield DoctorRow("site file", "missing", offence.result, offence.repair)
    else:
        yield DoctorRow("site file", "optional", "none: built-in settings", "opsctl init")
    sandbox = f" {app.site.sandbox!r}" if app.site.engine == "sandbox" else ""
    yield DoctorRow("engine", "ok", f"{app.site.engine}{sandbox}")


def _root(app: App) -> Iterator[DoctorRow]:
    root = app.root
    existing = root if root.exists() else next(parent for parent in root.parents if parent.exists())
    if not os.access(existing, os.W_OK):
        problem = f"{root}: {existing} is not writable by you"
        yield DoctorRow("root", "missing", problem, "choose another `root` in site.toml")
        return
    usage = shutil.disk_usage(existing)
    yield DoctorRow("root", "ok", f"{root}: {format_size(usage.free)} free of {format_size(usage.total)}")
    try:
        check_trusted([existing], root=existing if app.site.trust_parents else None)
    except OpsctlError as error:
        yield DoctorRow("root", "missing", error.message, error.hint or "")
    if app.site_problem:
        advice = "set site_owner in site.toml if you trust that user; otherwise have the directory removed"
        yield DoctorRow("root", "missing", app.site_problem, advice)
    try:
        skipped = find_entries_skipped(root)[:MAX_SKIPPED]
    except OpsctlError as error:
        yield DoctorRow("root", "missing", error.message, "remove entries that are no trains")
        return
    for line in skipped:
        yield DoctorRow("root", "unknown", f"skipped: {line}", "not a train: rename or remove the entry if it is yours")


def _state(app: App) -> Iterator[DoctorRow]:
    """Yield the files of trains and of the site that cannot be read."""
    from opsctl.monitor.damaged_files import list_damages  # noqa: PLC0415 (doctor must start)

    lines = app.history.list_unreadable()
    try:
        for run in all_trains(app.root):
            lines += list_damages(app.journal(run))
    except OpsctlError as error:
        lines.append(error.message)
    for line in lines:
        yield DoctorRow("files", "missing", line, "repair the file, or move it away; what stood there is unknown")


def _machine(_: App) -> Iterator[DoctorRow]:
    """Compare this machine with what `make demo` and the trainer need. A small machine costs time, never a start."""
    processor, cores = read_processor(os.environ), len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if processor.has_bf16 is False:
        slow = f"{processor.name}: no bf16 instructions; bf16 takes {SLOWDOWN_FROM_BF16} times as long as fp32"
        yield DoctorRow("processor", "optional", slow, 'precision = "auto" in [trainer], for runs without GPUs')
    else:
        bf16 = "has bf16 instructions" if processor.has_bf16 else "its instructions are unknown"
        yield DoctorRow("processor", "ok" if processor.has_bf16 else "unknown", f"{processor.name}: {bf16}")
    yield _compare("cores", cores, DEMO_CORES, str)
    yield _compare("memory", memory, DEMO_MEMORY_BYTES, format_size)
    installed = all(is_installed(module) for module in EXTRAS["trainer"].modules)
    yield _compare("disk", shutil.disk_usage(sys.prefix).free, DEMO_BYTES if installed else INSTALL_BYTES, format_size)


def _compare(check: str, available: int, needed: int, show: Callable[[int], str]) -> DoctorRow:
    if available >= needed:
        return DoctorRow(check, "ok", show(available))
    return DoctorRow(check, "optional", f"{show(available)}: demo and trainer need {show(needed)}", "a larger machine")


def _slurm(app: App) -> Iterator[DoctorRow]:
    from opsctl.slurm.pyslurm_reader import choose  # noqa: PLC0415 (doctor must start even if this module is broken)

    try:
        slurm, reader = choose(app.engine_runner)
        limits = slurm.limits()
    except OpsctlError as error:
        severity: DoctorSeverity = "unknown" if error.exit_code == 75 else "missing"
        absent = 'put Slurm\'s commands on PATH (module load slurm?), or engine = "sandbox" in site.toml'
        advice = absent if isinstance(error, MissingProgram) else error.hint or ""
        yield DoctorRow("slurm", severity, error.message, advice)
        return
    yield DoctorRow("slurm", "ok", f"{limits.version}, cluster {limits.cluster}, {limits.priority}")
    yield DoctorRow("reader", "ok", reader)
    if limits.accounting:
        yield DoctorRow("accounting", "ok", "Slurm's accounting answers")
    else:
        yield DoctorRow("accounting", "optional", "none: the end of a job is known only from its own files")
    if not limits.has_epilog:
        result = "none: after a node of a job dies, Slurm keeps the other nodes of the job for MessageTimeout"
        yield DoctorRow("epilog", "optional", result, "administrators: set an Epilog in slurm.conf, such as /bin/true")


def _sandbox(app: App) -> Iterator[DoctorRow]:
    from opsctl.sandbox.cluster import try_start  # noqa: PLC0415 (as above)
    from opsctl.sandbox.programs import find_programs  # noqa: PLC0415 (as above)

    severity: DoctorSeverity = "missing" if app.site.engine == "sandbox" else "optional"
    try:
        find_programs(os.environ.get("PATH", ""), accounting=False)
    except OpsctlError as error:
        yield DoctorRow("sandbox", severity, error.message, error.hint or "")
        return
    yield DoctorRow("sandbox", "ok", "slurmctld, slurmd and munge are installed")
    try:
        seconds, site = try_start(clock=app.clock, runner=app.runner)
    except OpsctlError as error:
        yield DoctorRow("sandbox start", severity, error.message, error.hint or "")
        return
    version = ".".join(f"{part:02}" for part in site.version)
    result = f"Slurm {version}: 1 node up on {site.network.address} in {format_duration(seconds)}"
    yield DoctorRow("sandbox start", "ok", result)


def _alerts(app: App) -> Iterator[DoctorRow]:
    from opsctl.alerts.channel_secrets import find_exposed  # noqa: PLC0415 (as above)
    from opsctl.alerts.dispatch import check, check_ping, list_abandoned  # noqa: PLC0415 (as above)

    if not app.site.alerts.channels:
        yield DoctorRow("alerts", "optional", "no channel: alerts go to a file only", "[alerts.channels] in site.toml")
    for channel, error in check(app.alerting):
        advice = "[alerts.channels] in site.toml" if error else f"opsctl alerts test sends a message to {channel}"
        severity: DoctorSeverity = "missing" if error else "ok"
        yield DoctorRow(f"alerts {channel}", severity, error.message if error else "is set up", advice)
    for channel, table in (*app.site.alerts.channels.items(), ("ping", app.site.alerts)):
        for field, path in find_exposed(table):
            yield DoctorRow(f"alerts {channel}", "missing", f"{field}: others can read {path}", f"chmod 600 {path}")
    for channel, count in Counter(item.channel for item in list_abandoned(app.alerting)).items():
        advice = f"opsctl alerts list; then remove {app.site_dir.alerts / 'undelivered' / channel}"
        yield DoctorRow(f"alerts {channel}", "missing", f"deliveries abandoned after 30 days: {count}", advice)
    try:
        if check_ping(app.alerting):
            yield DoctorRow("alerts ping", "ok", "is set up: fetched after every complete watch cycle")
    except OpsctlError as error:
        yield DoctorRow("alerts ping", "missing", error.message, "[alerts] in site.toml")


def _cron(app: App) -> Iterator[DoctorRow]:
    from opsctl.cron.cron_status import read_cron_status  # noqa: PLC0415 (as above)

    try:
        status = read_cron_status(app.cron)
    except OpsctlError as error:
        yield DoctorRow("cron", "missing", error.message, error.hint or "")
        return
    last = f"last tick {status.last_tick:%Y-%m-%d %H:%M} UTC" if status.last_tick else "no tick yet"
    if status.is_overdue:
        yield DoctorRow("cron", "missing", f"{status.driver or 'no driver'}; {last}: overdue", "opsctl cron start")
    elif not status.driver and status.last_tick is None:
        yield DoctorRow("cron", "optional", "not started: nothing watches trains unattended", "opsctl cron start")
    else:
        yield DoctorRow("cron", "ok", f"{status.driver or 'external ticks'}; {last}")
    for problem in status.problems:
        yield DoctorRow("cron", "missing", problem, "see docs/how-to/periodic-jobs.md")


def _extras(_: App) -> Iterator[DoctorRow]:
    for name, extra in EXTRAS.items():
        try:
            missing = [module for module in extra.modules if not is_installed(module)]
        except (ImportError, ValueError, OSError) as error:  # an import hook of another package is broken
            result = f"Python cannot search for {', '.join(extra.modules)}: {error}"
            yield DoctorRow(f"extra {name}", "unknown", result, install_command(name))
            continue
        if missing:
            result = f"{', '.join(missing)} not installed; needed by {extra.purpose}"
            yield DoctorRow(f"extra {name}", "optional", result, install_command(name))
        else:
            yield DoctorRow(f"extra {name}", "ok", f"for {extra.purpose}")


def _programs(_: App) -> Iterator[DoctorRow]:
    for name, purpose in (("git", "records uncommitted changes of a run"), ("py-spy", "shows where a rank hangs")):
        path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{Path(sys.executable).parent}")
        yield DoctorRow(name, "ok" if path else "optional", path or purpose)


CHECKS: tuple[Callable[[App], Iterator[DoctorRow]], ...] = (
    _settings,
    _root,
    _state,
    _machine,
    _slurm,
    _sandbox,
    _alerts,
    _cron,
    _extras,
    _programs,
)
"""The checks, in this order."""
