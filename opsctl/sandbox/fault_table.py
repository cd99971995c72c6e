"""The table of faults, which are shell lines, for drills, the race and the soak. Faults of daemons are in faults.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opsctl.base.errors import SandboxError
from opsctl.base.ports import Runner
from opsctl.base.tables import PACKAGE, read_package_table

SHELL = PACKAGE / "sandbox" / "faults.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault and what opsctl has to do about it; fault_table.toml explains the fields."""

    name: str
    says: str
    source: str
    touches: str
    inject: str
    undo: str = "true"
    until_noticed: bool = False
    lasts_s: float = 0
    begins_s: float = 0
    limit_s: float = 120
    slurm: Mapping[str, Any] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    action: tuple[str, ...] = ("",)
    alerts: tuple[str, ...] = ()
    resumes: bool = False


def read_faults() -> dict[str, Fault]:
    """Return every fault, by its name."""
    return {name: Fault(name=name, **row) for name, row in read_package_table("sandbox/fault_table.toml").items()}


def run_lines(lines: str, variables: Mapping[str, str], runner: Runner) -> None:
    """Run the lines with which a fault begins or ends. Raises SandboxError if they fail."""
    done = runner.run(("bash", "-c", f'. "$0" && {lines}', str(SHELL)), timeout=60, env=variables)
    if done.code:
        raise SandboxError(f"{lines}: {done.err.strip() or f'exit code {done.code}'}")
