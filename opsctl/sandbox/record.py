"""The record of a sandbox (sandbox.json), and its directories and files."""

import contextlib
import hashlib
import json
import os
import pwd
import secrets
import shutil
import socket
import stat
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Self

from opsctl.base.capabilities import choose_cgroup_plugin
from opsctl.base.errors import InputError, SandboxError
from opsctl.host.processes import ProcessId
from opsctl.host.system import state_home
from opsctl.sandbox.loopback import build_library, choose_library_path, choose_network
from opsctl.sandbox.slurm_conf import Auth, SandboxSite, SandboxSpec, check_name, render_conf
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


def make_site(
    spec: SandboxSpec, places: Places, version: tuple[int, int], first_port: int, auth: Auth, *, shared: bool
) -> SandboxSite:
    """Choose the directories, host name, ports and network of a new sandbox. Raises SandboxError."""
    full_name = socket.gethostname()
    return SandboxSite(
        home=places.home(spec.name).absolute(),
        run=places.run_directory(spec.name),
        host=full_name.partition(".")[0],
        user=user_name(),
        version=version,
        first_port=first_port,
        auth=auth,
        network=choose_network(full_name),
        shared=shared,
    )


def user_name() -> str:
    """Return the name of this user. Raises SandboxError without one."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise SandboxError(f"user id {uid} has no name on this machine; Slurm serves only users with a name") from None


def make_directories(record: SandboxRecord) -> None:
    """Write all files that must exist before the first daemon starts. Raises SandboxError."""
    site, spec = record.site, record.spec
    site.home.mkdir(parents=True, exist_ok=True)
    site.home.chmod(0o700)
    for name in ("log", "state"):
        (site.home / name).mkdir()
    make_run_directory(site.run, mode=0o755 if site.shared else 0o700)
    for name in spec.node_names:
        (site.run / "spool" / name).mkdir(parents=True)
    (site.run / "gres").mkdir()
    for number in range(spec.gpus_per_node):
        (site.run / "gres" / f"gpu{number}").symlink_to(os.devnull)
    for name in ("slurm.conf", "gres.conf"):
        write(site.run / name, render_conf(name, spec, site))
    # Without this file slurmd does not start on machines without a cgroup tree.
    write(site.run / "cgroup.conf", choose_cgroup_plugin(site.version) + "\n")
    if site.auth is Auth.MUNGE:
        write(site.home / "munge.key", secrets.token_bytes(128), mode=0o600)
    if spec.accounting:
        # slurmdbd reads this file from the directory of slurm.conf and refuses a file that others can read.
        write(site.run / "slurmdbd.conf", render_conf("slurmdbd.conf", spec, site), mode=0o600)
    if site.network.confined:
        write(choose_library_path(site.libraries), build_library(site.network.ipv6_address))


def write(path: Path, data: str | bytes, *, mode: int = 0o644) -> None:
    """Create a file that is private until `mode` is set. Raises FileExistsError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
    path.chmod(mode)


def make_run_directory(run: Path, *, mode: int) -> None:
    """Create the run directory. Raises SandboxError if the path exists: others can predict the path and create it."""
    try:
        run.mkdir(mode=0o700)
    except FileExistsError:
        raise SandboxError(
            f"{run} exists and does not belong to this sandbox", hint=f"remove {run}, or choose another --name"
        ) from None
    for directory in (run, run / "spool"):
        directory.mkdir(exist_ok=True)
        directory.chmod(mode)


def remove_run_directory(run: Path) -> None:
    """Remove the run directory, if it is a directory of this user and not a link."""
    with contextlib.suppress(FileNotFoundError):
        status = run.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            shutil.rmtree(run)
