"""podman for tests: a small image made of this machine's Python, without a network, and a podman that starts here."""

import os
import shutil
import subprocess
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

MARKER = "opsctl-test-image"
"""A file at the root of the image."""
PROGRAMS = ("bash", "sleep", "cat")
WRAPPER = """#!/bin/bash
# Hybrid cgroups, and rlimits that this kernel refuses, stop crun. Both are left out; everything else is podman's.
exec unshare --mount --propagation private bash -c '
  umount --recursive /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup
  exec {podman} --runtime {crun} "$@"' podman "$@"
"""
CRUN = """#!/usr/bin/python3
import json, os, sys
if "--bundle" in sys.argv:
    path = sys.argv[sys.argv.index("--bundle") + 1] + "/config.json"
    config = json.load(open(path))
    config["process"].pop("rlimits", None)
    json.dump(config, open(path, "w"))
os.execv("{crun}", ["crun", *sys.argv[1:]])
"""


@dataclass(frozen=True)
class Podman:
    """A podman with storage of its own, and the image `tiny`."""

    place: Path
    image: str = "localhost/tiny"

    @property
    def env(self) -> dict[str, str]:
        """The variables with which `podman` is this one."""
        path = f"{self.place / 'bin'}:{os.environ['PATH']}"
        return {"CONTAINERS_STORAGE_CONF": str(self.place / "storage.conf"), "PATH": path}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **self.env}
        return subprocess.run(["podman", *words], env=env, capture_output=True, text=True, timeout=250, check=False)

    def list_containers(self) -> list[str]:
        return self.run("ps", "--quiet").stdout.split()


def make_podman(place: Path) -> Podman:
    """Return a podman that runs containers on this machine. Skips the test where none does."""
    if os.geteuid() != 0 or not (shutil.which("podman") and shutil.which("crun")):
        pytest.skip("needs root, podman and crun: apt-get install podman crun")
    storage = f'[storage]\ndriver = "vfs"\ngraphroot = "{place}/graph"\nrunroot = "{place}/run"\n'
    (place / "storage.conf").write_text(storage)
    (place / "bin").mkdir()
    podman = Podman(place)
    archive = place / "root.tar"
    pack_root(archive)
    imported = podman.run("import", str(archive), podman.image)
    archive.unlink()
    if imported.returncode:
        pytest.skip(f"podman cannot import an image: {imported.stderr.strip()[-200:]}")
    if try_container(podman):
        return podman
    write_program(place / "bin" / "podman", WRAPPER.format(podman=shutil.which("podman"), crun=place / "bin" / "crun"))
    write_program(place / "bin" / "crun", CRUN.format(crun=shutil.which("crun")))
    if problem := "" if try_container(podman) else podman.run("run", "--rm", podman.image, "true").stderr:
        pytest.skip(f"podman starts no container here: {problem.strip()[-200:]}")
    return podman


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def try_container(podman: Podman) -> bool:
    options = ("--rm", "--cgroups=disabled", "--network=host", "--ipc=host")
    return podman.run("run", *options, podman.image, "cat", f"/{MARKER}").returncode == 0


def pack_root(archive: Path) -> None:
    """Write a root file system: Python with its library, a few programs, and the libraries that they load."""
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": "/usr", "base": "/usr"}))
    python = Path("/usr/bin/python3").resolve()
    binaries = [Path(shutil.which(name) or name) for name in PROGRAMS]
    modules = sorted((library / "lib-dynload").glob("*.so"))
    with tarfile.open(archive, "w") as tar:
        for path in {python, *binaries, *find_libraries([python, *binaries, *modules])}:
            tar.add(path.resolve(), arcname=str(path))
        tar.add(library, filter=leave_out)
        for name, target in (("usr/bin/python3", python.name), ("usr/bin/sh", "bash")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        tar.addfile(tarfile.TarInfo(MARKER))


def leave_out(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = set(Path(entry.name).parts)
    return None if parts & {"__pycache__", "test", "dist-packages", "site-packages", "ensurepip", "idlelib"} else entry


def find_libraries(binaries: list[Path]) -> set[Path]:
    """Return the shared libraries that the binaries load, as ldd finds them."""
    done = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, timeout=250, check=False)
    words = done.stdout.replace("(", " ").split()
    return {Path(word) for word in words if word.startswith("/") and ".so" in word and not word.endswith(":")}


def build_fake_pyxis(place: Path) -> Path:
    """Build the plugin and return a plugstack.conf that names it. Skips the test without a compiler or the headers."""
    if os.geteuid() != 0 or not shutil.which("gcc") or not Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("needs root, gcc and Slurm's headers: apt-get install gcc libslurm-dev")
    source, plugin = Path(__file__).with_name("fake_pyxis.c"), place / "fake_pyxis.so"
    argv = ["gcc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(plugin), str(source)]
    subprocess.run(argv, check=True, timeout=250)
    conf = place / "plugstack.conf"
    conf.write_text(f"required {plugin}\n")
    return conf


def unpack_root(place: Path) -> Path:
    """Return a directory with the root file system of the image."""
    archive, root = place / "root.tar", place / "root"
    pack_root(archive)
    with tarfile.open(archive) as tar:
        tar.extractall(root, filter="fully_trusted")
    archive.unlink()
    return root
