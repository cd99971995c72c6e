"""The export driver: lines for a scheduler that the site has already.

Their first tick says that ticks are to come from now on, so that it is noticed when they do not.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from opsctl.cron.context import CronContext
from opsctl.cron.drivers.selected_driver import SelectedDriver, read_selected, write_selected
from opsctl.host.system import hostname
from opsctl.render import render
from opsctl.settings.cron import CronSettings
from opsctl.state.journal import actor

NAME = "export"
FLAG = "--exported"


def crontab(argv: Sequence[str], settings: CronSettings) -> str:
    """For `crontab -e` on a login node."""
    return render("cron/crontab.j2", minutes=_minutes(settings), command=_cron_line(argv))


def scrontab(argv: Sequence[str], settings: CronSettings) -> str:
    """For `scrontab -e`, on sites whose Slurm has it."""
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
    """A timer and the service that it starts."""
    minutes = settings.every // 60 or 1
    when = "hourly" if minutes == 60 else f"*:0/{minutes}"
    return render(
        "cron/systemd-timer.j2", when=when, command=_systemd_line([*argv, FLAG]), limit=int(settings.limit_seconds)
    )


def systemd_service(argv: Sequence[str], _: CronSettings) -> str:
    """A service that runs the daemon driver."""
    return render("cron/systemd-service.j2", command=_systemd_line([*argv[:-1], "start", "daemon"]))


FORMATS: dict[str, Callable[[Sequence[str], CronSettings], str]] = {
    "crontab": crontab,
    "scrontab": scrontab,
    "systemd-timer": systemd_timer,
    "systemd-service": systemd_service,
}
"""What `opsctl cron export` can print."""


def expect(cron: CronContext) -> None:
    """Ticks are to come from outside, unless another driver was started. Raises RunDirError."""
    try:
        is_known = read_selected(cron.place) is not None
    except (OSError, ValueError):
        is_known = True
    if not is_known:
        write_selected(cron.place, SelectedDriver(driver=NAME, since=cron.clock.now(), by=actor(), host=hostname()))


def _minutes(settings: CronSettings) -> str:
    minutes = settings.every // 60 or 1
    return {1: "*", 60: "0"}.get(minutes, f"*/{minutes}")


def _cron_line(argv: Sequence[str]) -> str:
    # A percent sign means a line feed to cron.
    return shlex.join([*argv, FLAG]).replace("%", r"\%")


def _systemd_line(argv: Sequence[str]) -> str:
    """Quoted as systemd.service(5) wants it, which has its own percent and dollar signs."""
    words = (word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") for word in argv)
    return " ".join(f'"{word}"' if any(c in word for c in " \t'\"\\;") else word for word in words)
