"""The export driver: lines for the site's own scheduler.

The first exported tick selects this driver, so that missing ticks are noticed from then on.
"""

import shlex
from collections.abc import Callable, Sequence

from opsctl.base.nodesets import hostname
from opsctl.cron.cron_context import CronContext
from opsctl.cron.cron_dir import SelectedDriver, read_selected, write_selected
from opsctl.launch.render import render
from opsctl.settings.cron import CronSettings
from opsctl.state.journal import actor

NAME = "export"
FLAG = "--exported"


def crontab(argv: Sequence[str], settings: CronSettings) -> str:
    """Return a line for `crontab -e` on a login node."""
    return render("cron/crontab.j2", minutes=_minutes(settings), command=_cron_line(argv))


def scrontab(argv: Sequence[str], settings: CronSettings) -> str:
    """Return lines for `scrontab -e`, on sites whose Slurm supports scrontab."""
    options = {
        "--partition": settings.partition,
        "--account": settings.account,
        "--qos": settings.qos,
        "--mem": settings.memory,
        "--time": settings.time_limit,
    }
    lines = [f"{key}={value}" for key, value in options.items() if value]
    return render("cron/scrontab.j2", minutes=_minutes(settings), command=_cron_line(argv), options=lines)


def systemd_timer(argv: Sequence[str], settings: CronSettings) -> str:
    """Return a systemd timer and its service."""
    minutes = settings.every // 60 or 1
    when = "hourly" if minutes == 60 else f"*:0/{minutes}"
    return render(
        "cron/systemd-timer.j2", when=when, command=_systemd_line([*argv, FLAG]), limit=int(settings.limit_seconds)
    )


def systemd_service(argv: Sequence[str], _: CronSettings) -> str:
    """Return a systemd service that runs the daemon driver."""
    return render("cron/systemd-service.j2", command=_systemd_line([*argv[:-1], "start", "daemon"]))


FORMATS: dict[str, Callable[[Sequence[str], CronSettings], str]] = {
    "crontab": crontab,
    "scrontab": scrontab,
    "systemd-timer": systemd_timer,
    "systemd-service": systemd_service,
}
"""The formats of `opsctl cron export`."""


def expect(cron: CronContext) -> None:
    """Select the export driver unless another driver is selected. Raises RunDirError."""
    if read_selected(cron.place) is None:
        write_selected(cron.place, SelectedDriver(driver=NAME, since=cron.clock.now(), by=actor(), host=hostname()))


def _minutes(settings: CronSettings) -> str:
    minutes = settings.every // 60 or 1
    return {1: "*", 60: "0"}.get(minutes, f"*/{minutes}")


def _cron_line(argv: Sequence[str]) -> str:
    # cron reads a percent sign as a line feed.
    return shlex.join([*argv, FLAG]).replace("%", r"\%")


def _systemd_line(argv: Sequence[str]) -> str:
    """Quote the command for systemd.service(5), where percent and dollar signs are special."""
    words = (word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") for word in argv)
    return " ".join(f'"{word}"' if any(c in word for c in " \t'\"\\;") else word for word in words)
