"""The files of one sandbox: made, filled, removed."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import socket
import stat
from pathlib import Path

from opsctl.errors import SandboxError
from opsctl.sandbox.loopback import choose_library_path, choose_network
from opsctl.sandbox.loopback_library import build_library
from opsctl.sandbox.record import Places, SandboxRecord
from opsctl.sandbox.slurm_conf import Auth, SandboxSite, SandboxSpec, cgroup_conf, gres_conf, slurm_conf, slurmdbd_conf


def new_site(
    spec: SandboxSpec, places: Places, version: tuple[int, int], first_port: int, auth: Auth, *, shared: bool
) -> SandboxSite:
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
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise SandboxError(
            f"user id {uid} has no name on this machine, and Slurm serves only users that have one"
        ) from None


def make_directories(record: SandboxRecord) -> None:
    """Everything that must exist before the first daemon starts."""
    site, spec = record.site, record.spec
    make_private(site.home)
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
        # slurmdbd looks for it beside slurm.conf and wants it to be its owner's alone.
        write(site.run / "slurmdbd.conf", slurmdbd_conf(site), mode=0o600)
    if site.network.confined:
        write(choose_library_path(site.libraries), build_library(site.network.six))


def write(path: Path, data: str | bytes, *, mode: int = 0o644) -> None:
    """A new file with this mode from its first instant, whatever the umask."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
    path.chmod(mode)


def make_private(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)


def make_run_directory(run: Path, *, mode: int) -> None:
    """Its name can be foreseen and its parent is everybody's, so it must be new, and then it is ours."""
    try:
        run.mkdir(mode=0o700)
    except FileExistsError:
        raise SandboxError(
            f"{run} is there already and is not this sandbox's", hint="remove it, or choose another --name"
        ) from None
    for directory in (run, run / "spool"):
        directory.mkdir(exist_ok=True)
        directory.chmod(mode)


def remove_run_directory(run: Path) -> None:
    """Remove it if it is really ours: a directory, no link, with our user as its owner."""
    with contextlib.suppress(FileNotFoundError):
        status = run.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            shutil.rmtree(run)
