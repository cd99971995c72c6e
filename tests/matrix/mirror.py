"""The package archives of apt and pip, read from the configuration of this machine at every run."""

import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TARGET = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)"
APT_SETTING = re.compile(r"Acquire::(https?|ftp|Check-|Retries|Max-ValidTime|ForceIPv)", re.IGNORECASE)
PIP_SETTING = re.compile(r"^(?:global|install|:env:)\.([a-z-]+)='(.*)'$", re.MULTILINE)
PIP_SETTINGS = frozenset(
    {"index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert", "client-cert", "proxy"}
)


class CannotBuild(Exception):
    """This machine cannot build the roots. The message says why."""


@dataclass(frozen=True, slots=True)
class Source:
    """One archive that apt reads: `release` is a suite such as bookworm or bookworm-security."""

    uri: str
    release: str
    component: str
    signed_by: str


def read_machine_suite() -> str:
    """Return the code name of the installed distribution, such as bookworm."""
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "")


def read_sources(options: Sequence[str] = ()) -> list[Source]:
    """Return the archives of apt's configuration, in either format (deb822 or one line each)."""
    if not shutil.which("apt-get"):
        raise CannotBuild("apt-get is not installed: the roots are built from a Debian archive")
    argv = ["apt-get", *options, "indextargets", "--format", TARGET, "Created-By: Packages"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=250).stdout
    rows = [line.split("|") for line in listed.splitlines()]
    signed = re.compile(r"/\S+")
    return [
        Source(uri=uri, release=release, component=component, signed_by=key if signed.fullmatch(key) else "")
        for uri, release, component, key in rows
    ]


def find_archive(sources: Sequence[Source], suite: str) -> str:
    """Return the address of the archive that holds the base suite of this machine."""
    uris = [source.uri for source in sources if source.release == suite]
    if not uris:
        raise CannotBuild(f"apt's configuration has no archive for {suite}")
    return uris[0]


def render_sources_list(sources: Sequence[Source], *, machine: str, suite: str, rolling: Sequence[str]) -> str:
    """Return the sources.list of a root of `suite`. A rolling suite has neither updates nor security archives."""
    lines = []
    for source in sources:
        suffix = source.release.removeprefix(machine)
        if source.release.startswith(machine) and not (suffix and suite in rolling):
            lines.append(f"deb {source.uri} {suite}{suffix} {source.component}\n")
    return "".join(dict.fromkeys(lines))


def render_apt_conf() -> str:
    """Return the settings that apt needs to reach the archive: proxies, certificates, retries."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True, timeout=250).stdout
    return "".join(f"{line}\n" for line in dump.splitlines() if APT_SETTING.match(line) and not line.endswith('"";'))


def render_pip_conf(python: str) -> tuple[str, list[Path]]:
    """Return pip.conf as pip merges it from files and environment, and the local paths that it names."""
    argv = [python, "-m", "pip", "config", "list"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=250).stdout
    settings = {key: value for key, value in PIP_SETTING.findall(listed) if key in PIP_SETTINGS}
    paths = []
    for key, value in settings.items():
        for word in value.split():
            path = Path(word.removeprefix("file://"))
            if path.is_absolute() and path.exists():
                # The pages of an index link to files in the parent directory of the index.
                paths.append(path.parent if key.endswith("index-url") and len(path.parts) > 2 else path)
    lines = [f"{key} = " + "\n    ".join(value.split()) for key, value in settings.items()]
    return "[global]\n" + "\n".join(lines) + "\n", sorted(set(paths))
