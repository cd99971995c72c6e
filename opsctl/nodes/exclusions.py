"""Nodes that this site's trains must not use, each until its exclusion expires."""

import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from opsctl.base.errors import InputError, RunDirError
from opsctl.base.ports import Clock
from opsctl.state.lease import lease
from opsctl.state.records import HEADER, decode, encode, load_state
from opsctl.state.site_dir import SiteDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """One excluded node. Times are Unix times."""

    node: str
    reason: str
    since: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusions:
    """The site's exclusions, stored in `.site/nodes/exclusions.json`.

    What acts by it raises RunDirError for a file that cannot be read: no bad node comes back by that.
    """

    site: SiteDir
    clock: Clock

    def now(self) -> list[Exclusion]:
        """Return the exclusions that have not expired."""
        now = self.clock.now().timestamp()
        return [exclusion for exclusion in self._read() if exclusion.until > now]

    def shown(self) -> list[Exclusion]:
        """Return the exclusions for display; none if they cannot be read, which `list_unreadable` reports."""
        with suppress(RunDirError):
            return self.now()
        return []

    def last_day(self) -> frozenset[str]:
        """Return the nodes that are known to be excluded in the last 24 hours."""
        with suppress(RunDirError):
            return frozenset(exclusion.node for exclusion in self._read() if self._is_recent(exclusion))
        return frozenset()

    def _is_recent(self, exclusion: Exclusion) -> bool:
        return exclusion.since > (self.clock.now() - timedelta(days=1)).timestamp()

    def check_daily_limit(self, nodes: Collection[str], limit: int) -> None:
        """Raise InputError if with these nodes more than `limit` are excluded in 24 hours."""
        recent = self.last_day()
        if len(recent | set(nodes)) > max(limit, len(recent)):
            raise InputError(f"[health] exclude_per_day allows {limit} in 24 h, with {len(recent)} excluded so far")

    def add(self, reasons: Sequence[tuple[str, str]], *, hours: float, per_day: int | None = None) -> None:
        """Exclude (node, reason) pairs for `hours`, `per_day` nodes at most. Raises InputError, RunDirError, Busy."""
        self.site.create()
        with lease(self.site.nodes, self.clock):
            if per_day is not None:
                self.check_daily_limit([node for node, _ in reasons], per_day)
            now = self.clock.now()
            until = (now + timedelta(hours=hours)).timestamp()
            since_by_node = {exclusion.node: exclusion.since for exclusion in self.now()}
            exclusions = {exclusion.node: exclusion for exclusion in self._read()}
            for node, reason in reasons:
                since = since_by_node.get(node, now.timestamp())
                exclusions[node] = Exclusion(node=node, reason=reason, since=since, until=until)
            self._write(exclusions.values())

    def remove(self, nodes: Sequence[str]) -> None:
        """End the exclusions of these nodes. Raises RunDirError, Busy."""
        if not any(exclusion.node in nodes for exclusion in self._read()):
            return
        with lease(self.site.nodes, self.clock):
            self._write([exclusion for exclusion in self._read() if exclusion.node not in nodes])

    @property
    def _path(self) -> Path:
        return self.site.nodes / "exclusions.json"

    def _read(self) -> list[Exclusion]:
        return load_state(_parse, self._path, "repair it, or move it away and exclude the nodes anew") or []

    def _write(self, exclusions: Iterable[Exclusion]) -> None:
        """Store the exclusions that have not expired, and those of the last day."""
        now = self.clock.now().timestamp()
        exclusions = [exclusion for exclusion in exclusions if exclusion.until > now or self._is_recent(exclusion)]
        content = {**HEADER, "exclusions": list(map(encode, exclusions))}
        self.site.write(self._path, json.dumps(content, indent=1) + "\n")


def _parse(stored: Any) -> list[Exclusion]:
    # Of an earlier version: the exclusions alone.
    return [decode(Exclusion, fields) for fields in (stored if isinstance(stored, list) else stored["exclusions"])]
