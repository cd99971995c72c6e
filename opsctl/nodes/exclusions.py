"""Nodes that our trains are to be kept from where we may not drain them, until a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from opsctl.ports import Clock
from opsctl.state.lease import lease
from opsctl.state.site_dir import SiteDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    node: str
    reason: str
    since: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusions:
    site: SiteDir
    clock: Clock

    def now(self) -> list[Exclusion]:
        """Those that hold still."""
        now = self.clock.now().timestamp()
        return [exclusion for exclusion in self._read() if exclusion.until > now]

    def add(self, sequence: Sequence[tuple[str, str]], *, hours: float) -> None:
        """Keep trains from these nodes, for these reasons, from now on. Raises RunDirError, Busy."""
        self.site.create()
        with lease(self.site.nodes, self.clock):
            now = self.clock.now()
            until = (now + timedelta(hours=hours)).timestamp()
            exclusions = {exclusion.node: exclusion for exclusion in self.now()}
            for node, reason in sequence:
                since = exclusions[node].since if node in exclusions else now.timestamp()
                exclusions[node] = Exclusion(node=node, reason=reason, since=since, until=until)
            self._write(list(exclusions.values()))

    def remove(self, nodes: Sequence[str]) -> None:
        """Give these nodes back to later launches. Raises RunDirError, Busy."""
        if not any(exclusion.node in nodes for exclusion in self._read()):
            return
        with lease(self.site.nodes, self.clock):
            self._write([exclusion for exclusion in self.now() if exclusion.node not in nodes])

    @property
    def _path(self) -> Path:
        return self.site.nodes / "exclusions.json"

    def _read(self) -> list[Exclusion]:
        try:
            return [Exclusion(**load) for load in json.loads(self._path.read_text())]
        except (OSError, ValueError, TypeError):
            return []

    def _write(self, exclusions: Sequence[Exclusion]) -> None:
        self.site.write(self._path, json.dumps([asdict(exclusion) for exclusion in exclusions], indent=1) + "\n")
