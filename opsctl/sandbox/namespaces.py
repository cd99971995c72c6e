"""Run one command on a temporary Slurm in private namespaces, whose processes the kernel ends with the command."""

import fcntl
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from opsctl.base.errors import MissingProgram, SandboxError
from opsctl.base.ports import Clock, Runner, TimedOut
from opsctl.host.system import run_attached
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.members import MARKER
from opsctl.sandbox.record import Places
from opsctl.sandbox.slurm_conf import Auth, SandboxSpec
from opsctl.state.trust import ROOT_OWNED, list_root_owned

PRIVATE_NAMESPACES = ("--net", "--pid", "--fork", "--kill-child", "--mount-proc")
AS_USER = ("--user", "--map-current-user", "--keep-caps")
# The first process of a pid namespace inherits orphans and must reap them. Python does not reap orphans.
FIRST_PROCESS = ("sh", "-c", '"$@"; exit $?', "sh")
SLURM_PREFIXES = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SINFO_", "SQUEUE_", "SACCT_", "SCANCEL_")


def unshare_argv(runner: Runner) -> list[str] | None:
    """Return the command that enters private namespaces; None where this machine forbids them."""
    # Root stays in its user namespace: in a new user namespace slurmd fails at setgroups.
    argv = ["unshare", *(() if os.geteuid() == 0 else AS_USER), *PRIVATE_NAMESPACES]
    try:
        return argv if runner.run([*argv, "true"], timeout=10).code == 0 else None
    except (MissingProgram, TimedOut):
        return None


def run_private(
    spec: SandboxSpec, command: Sequence[str], *, clock: Clock, runner: Runner, warn: Callable[[str], None]
) -> int:
    """Run `command` on a temporary Slurm that leaves no files and no processes. Return the exit code of `command`."""
    enter = unshare_argv(runner)
    with tempfile.TemporaryDirectory(prefix="opsctl-run-", dir="/tmp") as name:  # short, as sockets need  # nosec B108
        directory = Path(name)
        if enter is None:
            warn("this machine allows no private namespaces: using a background sandbox, removed afterwards")
            return run_in_background(spec, command, directory, clock, runner)
        # The mount point is an empty directory: if this process is killed, only this directory remains.
        inner = [sys.executable, "-P", "-m", "opsctl", "sandbox", "run", *format_options(spec), "--inside", name, "--"]
        root_owned = {ROOT_OWNED: list_root_owned((Path.cwd(), Path.home(), directory, Path(sys.executable)))}
        return run_attached([*enter, *FIRST_PROCESS, *inner, *command], env=os.environ | root_owned)


def format_options(spec: SandboxSpec) -> list[str]:
    """Return the options of `opsctl sandbox run` that describe `spec`."""
    flags = [flag for flag, is_set in (("--accounting", spec.accounting), ("--fast", spec.fast)) if is_set]
    return ["--nodes", str(spec.nodes), "--gpus-per-node", str(spec.gpus_per_node), *flags]


def run_in_background(spec: SandboxSpec, command: Sequence[str], directory: Path, clock: Clock, runner: Runner) -> int:
    """Run `command` on a sandbox without namespaces, and remove the sandbox. Return the exit code."""
    places = replace(Places.default(), state=directory)
    sandbox = Sandbox.up(spec, places=places, clock=clock, runner=runner, private=True)
    try:
        # With the marker of daemons, `down` also ends processes that the command leaves running.
        marker = {MARKER: str(sandbox.record.site.run)}
        return run_attached(command, env=command_env(os.environ, sandbox) | marker)
    finally:
        sandbox.down()


def run_inside(spec: SandboxSpec, command: Sequence[str], directory: Path, *, clock: Clock, runner: Runner) -> int:
    """Run the second half of `run_private`, inside the namespaces. Return the exit code of `command`.

    Other processes cannot reach the namespaces' ports, so Slurm needs no authentication. Raises SandboxError.
    """
    raise_loopback()
    mounted = runner.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "opsctl", str(directory)], timeout=10)
    if mounted.code != 0:
        raise SandboxError(f"no private file system for the sandbox: {mounted.err.strip()}")
    places = replace(Places.default(), state=directory / "state", run=directory)
    sandbox = Sandbox.up(spec, places=places, clock=clock, runner=runner, auth=Auth.NONE)
    return run_attached(command, env=command_env(os.environ, sandbox))


def command_env(env: Mapping[str, str], sandbox: Sandbox) -> dict[str, str]:
    """Return `env` for commands on the sandbox, without the variables of another Slurm's job."""
    return {key: value for key, value in env.items() if not key.startswith(SLURM_PREFIXES)} | sandbox.env()


def raise_loopback() -> None:
    """Bring up `lo` in this namespace, with a second address: where 127.0.0.1 is alone, names do not resolve."""
    set_address, get_flags, set_flags, up = 0x8916, 0x8913, 0x8914, 0x1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, get_flags, struct.pack("16sH14x", b"lo", 0))
        flags = struct.unpack("16sH14x", answer)[1]
        fcntl.ioctl(control, set_flags, struct.pack("16sH14x", b"lo", flags | up))
        address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton("10.77.0.1"))
        fcntl.ioctl(control, set_address, struct.pack("16s16s", b"lo:0", address))
