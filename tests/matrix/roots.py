"""Minimal roots of a distribution's suites: built once by debootstrap, kept as tarballs, entered in namespaces."""

import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from opsctl.host.processes import die_with_parent
from tests.matrix import mirror
from tests.support.cases import read_table

REPOSITORY = Path(__file__).parents[2]
PACKAGES = read_table(__file__, "packages")
CHECKERS = ("import-linter", "mypy", "ruff", "types-")
"""Development packages that no test in a root needs."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VENV = "/opt/venv"
WORK = "/opt/opsctl"
BUILD_LIMIT_S = 1800
PRIVATE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts")
"""Namespaces whose processes and mounts end with the process that we started."""
SCRIPTS = Path("/usr/share/debootstrap/scripts")
ROLLING = ("sid", "forky", "testing", "unstable")

ENTER = Path(__file__).with_name("enter.sh").read_text()


def requirements() -> list[str]:
    """Return what pip installs in every root: build backend, core, small extras, tests' packages. No torch."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    tests = [name for name in expand(["dev"], extras) if not name.startswith(CHECKERS)]
    return sorted({*project["build-system"]["requires"], *project["project"]["dependencies"], *tests})


def expand(names: Sequence[str], extras: dict[str, list[str]]) -> Iterator[str]:
    """Yield the packages of the extras `names`, also of those that they name as opsctl-slurm[...]."""
    for requirement in chain.from_iterable(extras[name] for name in names):
        if own := re.fullmatch(r"opsctl-slurm\[(.+)\]", requirement):
            yield from expand(own[1].split(","), extras)
        else:
            yield requirement


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The root of one suite, unpacked in a directory."""

    suite: str
    path: Path

    def run(
        self,
        argv: Sequence[str],
        *,
        limit_s: float | None,
        network: bool = False,
        directory: str = "/",
        output: Path | None = None,
        binds: Sequence[Path] = (),
        env: dict[str, str] | None = None,
    ) -> int:
        """Run `argv` in the root and return its exit code, 124 after a timeout. Its processes and mounts end too."""
        inside = {
            "PATH": PATH,
            "HOME": "/root",
            "USER": "root",
            "LOGNAME": "root",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "TERM": os.environ.get("TERM", "dumb"),
            "DEBIAN_FRONTEND": "noninteractive",
            "DIRECTORY": directory,
            "PRIVATE_NETWORK": "" if network else "1",
            "BINDS": " ".join(map(str, binds)),
            **(env or {}),
        }
        enter = [*PRIVATE, *(() if network else ("--net",)), "sh", "-c", ENTER, "sh"]
        command = [*enter, str(self.path), f"matrix-{self.suite}", *argv]
        return run_bounded(command, env=inside, limit_s=limit_s, output=output)

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        target = self.path / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def name_host(self) -> None:
        """Write /etc/hosts as Debian's installer writes it for a machine with this name."""
        host = f"matrix-{self.suite}"
        self.write("/etc/hostname", f"{host}\n")
        self.write("/etc/hosts", f"127.0.0.1\tlocalhost {host}\n::1\tlocalhost ip6-localhost\n")

    def copy_tree(self) -> None:
        """Copy the working tree: tracked files, and untracked files that git does not ignore."""
        argv = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=250).stdout.split("\0")
        for name in filter(None, names):
            source, target = REPOSITORY / name, self.path / WORK.lstrip("/") / name
            if source.is_symlink() or source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)

    def slurm_version(self) -> str:
        """Return the version of the slurmctld package, such as 24.11.5."""
        argv = ["dpkg-query", f"--admindir={self.path}/var/lib/dpkg", "-W", "-f", "${Version}", "slurmctld"]
        version = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=250).stdout
        return re.split(r"[-+~]", version.rpartition(":")[2])[0]


def cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "opsctl" / "matrix"


def tarball(suite: str) -> Path:
    """Return the path of the packed root, named after the suite and a hash of the installed packages."""
    recipe = "\n".join([suite, platform.machine(), *PACKAGES, *requirements()])
    suffix = "tar.zst" if shutil.which("zstd") else "tar.gz"
    return cache() / f"{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.{suffix}"


@contextmanager
def unpacked(suite: str, *, log: Path) -> Iterator[Root]:
    """Provide a fresh root of `suite`, built if the cache has none, and remove it at the end."""
    packed = tarball(suite)
    directory = Path(tempfile.mkdtemp(prefix=f"opsctl-matrix-{suite}-"))
    directory.chmod(0o755)
    root = Root(suite=suite, path=directory / "root")
    try:
        if packed.exists():
            root.path.mkdir()
            subprocess.run(["tar", "-xpf", str(packed), "-C", str(root.path)], check=True, timeout=BUILD_LIMIT_S)
        else:
            build(root, log=log)
            pack(root, packed)
        root.name_host()
        yield root
    finally:
        remove(directory)


def run_bounded(argv: Sequence[str], *, env: dict[str, str], limit_s: float | None, output: Path | None) -> int:
    """Run a command that dies with this process; return its exit code, 124 after a timeout."""
    stream = output.open("ab") if output else None
    dying = partial(die_with_parent, signal.SIGKILL)
    child = subprocess.Popen(argv, env=env, stdout=stream, stderr=stream, preexec_fn=dying)  # noqa: PLW1509 (no threads)
    try:
        return child.wait(limit_s)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        if child.poll() is None:  # --kill-child ends everything inside with it
            child.kill()
            child.wait()
        if stream:
            stream.close()


def remove(directory: Path) -> None:
    """Remove a root. Raises CannotBuild if a file system is mounted in it, as its files are not ours to remove."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    inside = [mount for mount in mounts if Path(mount).is_relative_to(directory)]
    if inside:
        raise mirror.CannotBuild(f"{directory} is left in place: {', '.join(inside)} is mounted in it")
    shutil.rmtree(directory)


def pack(root: Root, packed: Path) -> None:
    packed.parent.mkdir(parents=True, exist_ok=True)
    half = packed.with_name(f".{os.getpid()}-{packed.name}")
    try:
        argv = ["tar", "-caf", str(half), "-C", str(root.path), "."]
        subprocess.run(argv, check=True, timeout=BUILD_LIMIT_S)
        half.rename(packed)
    finally:
        half.unlink(missing_ok=True)


def build(root: Root, *, log: Path) -> None:
    """Build a root: debootstrap, packages, a virtual environment. Raises CannotBuild with the end of the log."""
    machine = mirror.read_machine_suite()
    sources = mirror.read_sources()
    uri = mirror.find_archive(sources, machine)
    # debootstrap mounts /proc in the root. In its own namespaces the mount ends even with an interrupted debootstrap.
    argv = [*PRIVATE, "debootstrap", "--variant=minbase", root.suite, str(root.path), uri]
    if not (SCRIPTS / root.suite).exists():  # the suite is newer than this machine's debootstrap
        argv.append(str(SCRIPTS / "sid"))
    code = run_bounded(argv, env=dict(os.environ), limit_s=BUILD_LIMIT_S, output=log)
    raise_on_failure(code, f"debootstrap {root.suite}", log)
    root.name_host()
    root.write("/etc/resolv.conf", Path("/etc/resolv.conf").read_text())
    root.write(
        "/etc/apt/sources.list", mirror.render_sources_list(sources, machine=machine, suite=root.suite, rolling=ROLLING)
    )
    root.write("/etc/apt/apt.conf.d/99archive", mirror.render_apt_conf())
    root.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", mode=0o755)  # no service is started
    for key in {source.signed_by for source in sources if source.signed_by}:
        if not (root.path / key.lstrip("/")).exists():
            root.write(key, "")
            shutil.copy(key, root.path / key.lstrip("/"))
    pip_conf, binds = mirror.render_pip_conf(sys.executable)
    steps = [
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-qy", "--no-install-recommends", *PACKAGES],
        ["apt-get", "clean"],
        ["python3", "-m", "venv", VENV],
        [f"{VENV}/bin/pip", "install", "-q", *requirements()],
        ["sh", "-c", "rm -rf /etc/pip.conf ~/.cache /var/lib/apt/lists/*"],
    ]
    root.write("/etc/pip.conf", pip_conf)
    for step in steps:
        shared = binds if step[0].endswith("pip") else ()  # apt must not find a mount in place of a package's file
        code = root.run(step, limit_s=BUILD_LIMIT_S, network=True, output=log, binds=shared, env=proxies())
        raise_on_failure(code, f"{' '.join(step)[:60]} in {root.suite}", log)


def proxies() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}


def raise_on_failure(code: int, step: str, log: Path) -> None:
    if code:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise mirror.CannotBuild(f"{step}: exit code {code}\n{end}\nthe whole log: {log}")
