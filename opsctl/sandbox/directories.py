"""Create and remove the files of a sandbox."""

import contextlib
import os
import pwd
import secrets
import shutil
import socket
import stat
from pathlib import Path

from opsctl.base.errors import SandboxError
from opsctl.sandbox.loopback import build_library, choose_library_path, choose_network
from opsctl.sandbox.record import Places, SandboxRecord
from opsctl.sandbox.slurm_conf import Auth, SandboxSite, SandboxSpec, cgroup_conf, gres_conf, slurm_conf, slurmdbd_conf


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
    write(site.conf, slurm_conf(spec, site))
    write(site.run / "gres.conf", gres_conf(spec, site))
    write(site.run / "cgroup.conf", cgroup_conf(site.version))
    if site.auth is Auth.MUNGE:
        write(site.home / "munge.key", secrets.token_bytes(128), mode=0o600)
    if spec.accounting:
        # slurmdbd reads this file from the directory of slurm.conf and refuses a file that others can read.
        write(site.run / "slurmdbd.conf", slurmdbd_conf(site), mode=0o600)
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
