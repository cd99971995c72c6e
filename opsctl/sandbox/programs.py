"""Where Slurm's programs are. Daemons live in sbin, which is not on an ordinary user's PATH."""

from __future__ import annotations

import os
import shutil

from opsctl.capabilities import parse_version
from opsctl.errors import MissingProgram, SandboxError
from opsctl.ports import Runner

SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
BASIC = ("slurmctld", "slurmd", "sinfo", "scontrol", "srun", "munged")
ACCOUNTING = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db")
APT = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
APT_ACCOUNTING = "slurmdbd slurm-wlm-mysql-plugin mariadb-server"
DNF = "slurm slurm-slurmctld slurm-slurmd munge"
DNF_ACCOUNTING = "slurm-slurmdbd mariadb-server"


def find_programs(path: str, *, accounting: bool, sbin: tuple[str, ...] = SBIN) -> dict[str, str]:
    """Where each program that a sandbox needs is, by name. All that are missing are told at once."""
    search = os.pathsep.join((path, *sbin))
    names = (*BASIC, *ACCOUNTING) if accounting else BASIC
    found = {name: shutil.which(name, path=search) for name in names}
    missing = [name for name, where in found.items() if where is None]
    if missing:
        raise MissingProgram(f"not installed: {', '.join(missing)}", hint=install_hint(accounting=accounting))
    return {name: where for name, where in found.items() if where is not None}


def install_hint(*, accounting: bool) -> str:
    """The commands that install what a sandbox needs. It starts none of the system services that come along."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    apt = f"{APT} {APT_ACCOUNTING}" if accounting else APT
    dnf = f"{DNF} {DNF_ACCOUNTING}" if accounting else DNF
    return (
        f"Debian, Ubuntu:  {sudo}apt-get install -y --no-install-recommends {apt}\n"
        f"Fedora, RHEL with EPEL:  {sudo}dnf install -y {dnf}"
    )


def slurm_version(runner: Runner, slurmctld: str) -> tuple[int, int]:
    """Such as (22, 5)."""
    text = runner.run([slurmctld, "-V"], timeout=10).out
    version = parse_version(text)
    if version is None:
        raise SandboxError(f"{slurmctld} -V says {text.strip()!r}, which names no version")
    return version
