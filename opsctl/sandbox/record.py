"""What is known of a sandbox between two commands: sandbox.json, and where it lies."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from opsctl.errors import InputError
from opsctl.host.processes import ProcessId
from opsctl.sandbox.loopback import Network
from opsctl.sandbox.slurm_conf import Auth, SandboxSite, SandboxSpec, check_name
from opsctl.settings.loader import state_home
from opsctl.state.files import write_atomic

MUNGED, DATABASE, SLURMDBD, CONTROLLER = "munged", "mariadbd", "slurmdbd", "slurmctld"
"""The names of the daemons that are no node's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The directories that sandboxes may use."""

    state: Path
    cache: Path
    run: Path = Path("/tmp")  # noqa: S108 (munged wants a world-readable path; the directory below it is checked to be ours)

    @classmethod
    def default(cls) -> Places:
        """This user's, by the XDG rules."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(state=state_home() / "sandbox", cache=cache / "opsctl" / "sandbox")

    def home(self, name: str) -> Path:
        check_name(name)
        return self.state / name

    def run_directory(self, name: str) -> Path:
        """The same after every `up`, so that a shell's SLURM_CONF stays true; different for every state directory."""
        digest = hashlib.sha256(os.fsencode(self.home(name).absolute())).hexdigest()[:8]
        return self.run / f"opsctl-{os.getuid()}-{name}-{digest}"

    def names(self) -> list[str]:
        """The sandboxes that left a record here."""
        return sorted(path.parent.name for path in self.state.glob("*/sandbox.json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxDaemon:
    """One process of a sandbox, and how to start it again."""

    name: str
    argv: tuple[str, ...]
    process: ProcessId


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """A sandbox. `complete` once it was all up; until then only good for being cleaned away."""

    spec: SandboxSpec
    site: SandboxSite
    started: datetime
    complete: bool = False
    daemons: tuple[SandboxDaemon, ...] = ()

    def daemon(self, name: str) -> SandboxDaemon | None:
        return next((daemon for daemon in self.daemons if daemon.name == name), None)

    def with_daemon(self, *new: SandboxDaemon) -> SandboxRecord:
        """With these instead of those of the same names."""
        names = {daemon.name for daemon in new}
        return replace(self, daemons=(*(old for old in self.daemons if old.name not in names), *new))

    def save(self) -> None:
        write_atomic(self.site.home / "sandbox.json", json.dumps(asdict(self), default=str, indent=1), mode=0o600)


def read_record(home: Path) -> SandboxRecord | None:
    """The record in `home`, or None if it is missing or garbled: processes are found without it too."""
    try:
        return parse_record(json.loads((home / "sandbox.json").read_text()))
    except (OSError, ValueError, KeyError, TypeError, InputError):
        return None


def parse_record(fields: dict[str, Any]) -> SandboxRecord:
    site = fields["site"]
    paths = {"home": Path(site["home"]), "run": Path(site["run"])}
    return SandboxRecord(
        spec=SandboxSpec(**fields["spec"]),
        site=SandboxSite(
            **{
                **site,
                **paths,
                "version": tuple(site["version"]),
                "auth": Auth(site["auth"]),
                "network": Network(**{**site["network"], "parameters": tuple(site["network"]["parameters"])}),
            }
        ),
        started=datetime.fromisoformat(fields["started"]),
        complete=fields["complete"],
        daemons=tuple(
            SandboxDaemon(name=daemon["name"], argv=tuple(daemon["argv"]), process=ProcessId(**daemon["process"]))
            for daemon in fields["daemons"]
        ),
    )
