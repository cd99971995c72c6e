"""The record of a sandbox (sandbox.json) and the directories of sandboxes."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Self

from opsctl.base.errors import InputError
from opsctl.host.processes import ProcessId
from opsctl.host.system import state_home
from opsctl.sandbox.slurm_conf import SandboxSite, SandboxSpec, check_name
from opsctl.state.files import write_atomic
from opsctl.state.records import HEADER, decode

MUNGED, DATABASE, SLURMDBD, CONTROLLER = "munged", "mariadbd", "slurmdbd", "slurmctld"
"""The names of the daemons other than slurmd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The directories that sandboxes may use."""

    state: Path
    cache: Path
    run: Path = Path("/tmp")  # noqa: S108 (munged wants a world-readable path; the directory below it is checked to be ours)  # nosec B108

    @classmethod
    def default(cls) -> Self:
        """Return the directories of this user, by the XDG base directory specification."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(state=state_home() / "sandbox", cache=cache / "opsctl" / "sandbox")

    def home(self, name: str) -> Path:
        check_name(name)
        return self.state / name

    def run_directory(self, name: str) -> Path:
        """Return the run directory of a sandbox.

        The path is the same after every `up`, so that SLURM_CONF in a shell stays valid, and differs between state
        directories.
        """
        digest = hashlib.sha256(os.fsencode(self.home(name).absolute())).hexdigest()[:8]
        return self.run / f"opsctl-{os.getuid()}-{name}-{digest}"

    def names(self) -> list[str]:
        """Return the names of the sandboxes with a record."""
        return sorted(path.parent.name for path in self.state.glob("*/sandbox.json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxDaemon:
    """One daemon of a sandbox, with the command that restarts the daemon."""

    name: str
    argv: tuple[str, ...]
    process: ProcessId


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """The specification, directories and daemons of a sandbox."""

    spec: SandboxSpec
    site: SandboxSite
    started: datetime
    complete: bool = False
    """Whether every daemon has started. An incomplete sandbox can only be removed."""
    daemons: tuple[SandboxDaemon, ...] = ()

    def daemon(self, name: str) -> SandboxDaemon | None:
        return next((daemon for daemon in self.daemons if daemon.name == name), None)

    def with_daemon(self, *new: SandboxDaemon) -> Self:
        """Return the record with `new` in place of the daemons of the same names."""
        names = {daemon.name for daemon in new}
        return replace(self, daemons=(*(old for old in self.daemons if old.name not in names), *new))

    def save(self) -> None:
        text = json.dumps({**HEADER, **asdict(self)}, default=str, indent=1)
        write_atomic(self.site.home / "sandbox.json", text, mode=0o600)


def read_record(home: Path) -> SandboxRecord | None:
    """Return the record in `home`; None if the file is missing or invalid. Processes are found without a record."""
    try:
        return decode(SandboxRecord, json.loads((home / "sandbox.json").read_text()))
    except (OSError, ValueError, InputError, RecursionError):
        return None
