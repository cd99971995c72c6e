"""Bytes and inodes of the site's file systems: how much is used, and in how many hours they will be full."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal

from opsctl.base.errors import OpsctlError
from opsctl.base.model import Finding, Level
from opsctl.base.units import format_size
from opsctl.settings.watch import Filesystem
from opsctl.state.time_stamps import parse_past
from opsctl.telemetry import disk_usage
from opsctl.telemetry.disk_usage import Space, User
from opsctl.watchdogs.context import WatchContext
from opsctl.watchdogs.fill_rate import Growth, measure_growth, measure_observed

SAMPLES = 300
BIGGEST_EVERY = timedelta(hours=6)
BAD = (Level.WARNING, Level.CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemObservation:
    """Usage and growth of one file system."""

    filesystem: Filesystem
    space: Space | None = None
    problem: str = ""
    """Why the usage is unknown."""
    trains: tuple[Growth, ...] = ()
    """Growth by the checkpoints of each train."""
    observed_rate: float | None = None
    """Growth by all users in bytes per second; None before the observation is long enough."""
    unmoved_since: datetime | None = None
    """Start of unchanged figures, if checkpoints were written since."""
    users: tuple[User, ...] = ()


class FsQuota:
    name: ClassVar[str] = "fs_quota"
    of: ClassVar[Literal["filesystem"]] = "filesystem"
    needs_slurm: ClassVar[bool] = False

    def probe(self, context: WatchContext, target: Filesystem) -> FilesystemObservation:
        filesystem, keep = target, context.memory.directory / self.name
        try:
            space = disk_usage.read(filesystem, context.runner, keep=keep, now=context.now)
        except OpsctlError as error:
            return FilesystemObservation(filesystem=filesystem, problem=str(error))
        except OSError as error:
            return FilesystemObservation(
                filesystem=filesystem, problem=f"{error.filename or target.path}: {error.strerror or error}"
            )
        fields = context.memory.read(self.name, filesystem.name)
        trains = [
            (train, measure_growth(train, filesystem.path, fields.setdefault("sizes", {}))) for train in context.trains
        ]
        on_it = tuple(growth for _, growth in trains if growth)
        fields = self._remember(fields, space, context.now)
        context.memory.write(self.name, filesystem.name, fields)
        wrote = max((growth.newest for growth in on_it), default=None)
        moved = datetime.fromisoformat(fields["moved"])
        measured = FilesystemObservation(
            filesystem=filesystem,
            space=space,
            trains=on_it,
            observed_rate=measure_observed(fields["samples"]),
            unmoved_since=moved if wrote and wrote > moved else None,
        )
        return self._with_users(context, measured)

    def _with_users(self, context: WatchContext, measured: FilesystemObservation) -> FilesystemObservation:
        """Add the largest users once the file system is nearly full. The measurement runs in the background."""
        filesystem, keep = measured.filesystem, context.memory.directory / self.name
        if _judged(measured, context.now)[0] not in BAD or not context.acts:
            return measured
        path = disk_usage.measure(
            filesystem.path, keep=keep, name=filesystem.name, now=context.now, every=BIGGEST_EVERY
        )
        until = context.clock.monotonic() + 2.0
        while not (users := disk_usage.find_largest(path, filesystem.path)) and context.clock.monotonic() < until:
            context.clock.sleep(0.1)
        return FilesystemObservation(
            filesystem=filesystem,
            space=measured.space,
            trains=measured.trains,
            observed_rate=measured.observed_rate,
            unmoved_since=measured.unmoved_since,
            users=tuple(users),
        )

    def _remember(self, fields: dict[str, Any], space: Space, now: datetime) -> dict[str, Any]:
        figures = [space.used, space.inodes_used, space.percent, space.inodes_percent]
        moved = fields.get("moved") if fields.get("figures") == figures else None
        moved = parse_past(moved, now).isoformat() if moved else now.isoformat()
        samples = [sample for sample in fields.get("samples", []) if sample[0] <= now.timestamp()]
        if space.used is not None and (not samples or now.timestamp() - samples[-1][0] >= 600):
            samples.append([now.timestamp(), space.used])
        return {**fields, "figures": figures, "moved": moved, "samples": samples[-SAMPLES:]}

    def judge(self, observation: FilesystemObservation, now: datetime) -> list[Finding]:
        level, summary = _judged(observation, now)
        return [
            Finding(
                key=f"{self.name}/{observation.filesystem.name}",
                level=level,
                summary=summary,
                evidence=_evidence(observation),
                remedy="delete or move checkpoints: opsctl checkpoint prune" if level in BAD else "",
            )
        ]


def _judged(observation: FilesystemObservation, now: datetime) -> tuple[Level, str]:
    filesystem, space = observation.filesystem, observation.space
    if space is None:
        return Level.UNKNOWN, f"{filesystem.name}: {observation.problem}"
    shares = [_bytes(filesystem, space), _inodes(filesystem, space), *_hours(observation)]
    known = [share for share in shares if share]
    if not known:
        return Level.UNKNOWN, f"{filesystem.name}: neither usage nor limit is known"
    worst = max((level for level, _ in known), key=_SEVERITY.index)
    texts = [text for level, text in known if level is worst]
    if worst is Level.OK and (stale := _stale(observation, now)):
        return Level.UNKNOWN, f"{filesystem.name}: {stale}"
    return worst, f"{filesystem.name} ({filesystem.path}): {'; '.join(texts)}"


_SEVERITY = [Level.OK, Level.UNKNOWN, Level.WARNING, Level.CRITICAL]


def _bytes(filesystem: Filesystem, space: Space) -> tuple[Level, str] | None:
    reliable = filesystem.reliable_percent / 100
    limit = space.limit if space.limit is not None else filesystem.limit
    if space.used is None or not limit:
        return _share(filesystem, space.percent / reliable, "bytes") if space.percent is not None else None
    left = limit * reliable - space.used
    level, text = _share(filesystem, 100 * space.used / (limit * reliable), "bytes")
    of = f"{format_size(limit)}" + (
        f", of which {filesystem.reliable_percent:g} % are reliable" if reliable < 1 else ""
    )
    text = f"{text} ({format_size(space.used)} of {of})"
    if left < filesystem.free:
        return Level.CRITICAL, f"{text}, {format_size(max(0, left))} left, needs {format_size(filesystem.free)}"
    return level, text


def _inodes(filesystem: Filesystem, space: Space) -> tuple[Level, str] | None:
    limit = space.inodes_limit if space.inodes_limit is not None else filesystem.inode_limit
    if space.inodes_used is None or not limit:
        return _share(filesystem, space.inodes_percent, "inodes") if space.inodes_percent is not None else None
    level, text = _share(filesystem, 100 * space.inodes_used / limit, "inodes")
    return level, f"{text} ({space.inodes_used:,} of {limit:,})"


def _share(filesystem: Filesystem, percent: float, resource: str) -> tuple[Level, str]:
    if percent >= filesystem.critical_percent:
        return Level.CRITICAL, f"{percent:.2f}% {resource} usage, critical at {filesystem.critical_percent:g}%"
    if percent >= filesystem.warning_percent:
        return Level.WARNING, f"{percent:.2f}% {resource} usage, warning at {filesystem.warning_percent:g}%"
    return Level.OK, f"{percent:.2f}% {resource} usage"


def _hours(observation: FilesystemObservation) -> list[tuple[Level, str]]:
    """Forecast when the file system is full, at the higher of the trains' rate and the observed rate."""
    filesystem, space = observation.filesystem, observation.space
    assert space is not None
    limit = space.limit if space.limit is not None else filesystem.limit
    inode_limit = space.inodes_limit if space.inodes_limit is not None else filesystem.inode_limit
    rate = max(sum(train.bytes_s for train in observation.trains), observation.observed_rate or 0.0)
    forecasts = []
    if rate > 0 and limit and space.used is not None:
        left = limit * filesystem.reliable_percent / 100 - space.used
        forecasts.append(_forecast(filesystem, left / rate / 3600, "bytes", f"{format_size(rate * 86400)} a day"))
    inode_rate = sum(train.inodes_s for train in observation.trains)
    if inode_rate > 0 and inode_limit and space.inodes_used is not None:
        left = inode_limit - space.inodes_used
        forecasts.append(_forecast(filesystem, left / inode_rate / 3600, "inodes", f"{inode_rate * 86400:,.0f} a day"))
    return forecasts


def _forecast(filesystem: Filesystem, hours: float, resource: str, rate: str) -> tuple[Level, str]:
    level = Level.OK
    if hours < filesystem.warning_hours:
        level = Level.CRITICAL if hours < filesystem.critical_hours else Level.WARNING
    return level, f"out of {resource} in {max(0, hours):,.0f} h at {rate}"


def _stale(observation: FilesystemObservation, now: datetime) -> str:
    """Return why the figures are too old; empty if they are current. Some systems update every half hour or never."""
    limit = timedelta(minutes=observation.filesystem.stale_minutes)
    at = observation.space.at if observation.space else None
    if observation.filesystem.by == "du":
        limit += timedelta(minutes=observation.filesystem.every_minutes)
    if at and now - at > limit:
        return f"the figures are of {at:%Y-%m-%d %H:%M} UTC, {_hours_of(now - at)} h ago"
    if observation.unmoved_since and now - observation.unmoved_since > limit and observation.filesystem.by != "du":
        return (
            f"the figures have not moved for {_hours_of(now - observation.unmoved_since)} h,"
            " though checkpoints were written"
        )
    return ""


def _hours_of(span: timedelta) -> str:
    return f"{span.total_seconds() / 3600:.1f}"


def _evidence(observation: FilesystemObservation) -> tuple[str, ...]:
    trains = [
        f"{train.train}: {format_size(train.size)} in {train.inodes} inodes every {train.every_s / 3600:.1f} h"
        for train in observation.trains
        if train.bytes_s
    ]
    users = [
        f"{user.name}: {format_size(user.size)}, {user.inodes:,} inodes, most in {user.places[0]}"
        for user in observation.users
    ]
    return (*trains, *users)
