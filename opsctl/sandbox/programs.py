"""Find Slurm's programs. Daemons are in sbin directories, which are not on an ordinary user's PATH."""

import os
import shutil

from opsctl.base.capabilities import parse_version
from opsctl.base.errors import MissingProgram, SandboxError
from opsctl.base.ports import Runner
from opsctl.base.tables import read_package_table

SBIN_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin")
BASIC_PROGRAMS = ("slurmctld", "slurmd", "sinfo", "scontrol", "srun", "munged")
ACCOUNTING_PROGRAMS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db")


def find_programs(path: str, *, accounting: bool, sbin: tuple[str, ...] = SBIN_DIRECTORIES) -> dict[str, str]:
    """Return the path of every program that a sandbox needs, by name. Raises MissingProgram with all missing names."""
    search = os.pathsep.join((path, *sbin))
    names = (*BASIC_PROGRAMS, *ACCOUNTING_PROGRAMS) if accounting else BASIC_PROGRAMS
    paths = {name: shutil.which(name, path=search) for name in names}
    missing = [name for name, program_path in paths.items() if program_path is None]
    if missing:
        raise MissingProgram(f"not installed: {', '.join(missing)}", hint=install_hint(accounting=accounting))
    return {name: program_path for name, program_path in paths.items() if program_path is not None}


def install_hint(*, accounting: bool) -> str:
    """Return the commands that install the programs of a sandbox."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    hints: list[str] = read_package_table("sandbox/install_hint.toml")["accounting" if accounting else "basic"]
    return "\n".join(hints).format(sudo=sudo)


def read_slurm_version(runner: Runner, slurmctld: str) -> tuple[int, int]:
    """Return the version of slurmctld, such as (22, 5). Raises SandboxError."""
    text = runner.run([slurmctld, "-V"], timeout=10).out
    version = parse_version(text)
    if version is None:
        raise SandboxError(f"{slurmctld} -V prints no version: {text.strip()!r}")
    return version
