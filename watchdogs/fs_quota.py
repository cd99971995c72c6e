"""Bytes and inodes of the site's file systems: how much is used, and in how many hours they will be full."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from operator import attrgetter
from statistics import median
from typing import ClassVar, Literal

from pydantic import AwareDatetime

from opsctl.base.errors import OpsctlError
from opsctl.base.findings import Finding, Severity
from opsctl.base.statements import NO_REMEDY, Remedy, Statement, Value, advise, state
from opsctl.base.units import format_size
from opsctl.checkpoints.scan import size_of
from opsctl.settings.watch import Filesystem
from opsctl.telemetry import disk_usage
from opsctl.telemetry.disk_usage import Space, User
from opsctl.telemetry.progress.signs import find_train_saves
from opsctl.telemetry.progress.train_settings import read_checkpoint_table
from opsctl.watchdogs.checkpoint import expected_s
from opsctl.watchdogs.context import WatchContext, WatchedTrain

SAMPLES = 300
SAMPLE_EVERY_S = 600
Sample = tuple[float, float]
"""Time, used bytes."""
WATCHED_S = 6 * 3600.0
"""Minimum observation for a rate: over a shorter time, copying and deleting files hides the trend."""
MAX_SIZES_REMEMBERED = 50
BIGGEST_EVERY = timedelta(hours=6)
FORECAST, GROWTH = "disk.full", "disk.grows"
"""Kinds of statements: when a file system is full; how a train's checkpoints fill it."""
BAD = (Severity.WARNING, Severity.CRITICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth by one train's checkpoints."""

    train: str
    size: int
    inodes: int
    every_s: float
    newest: datetime
    """Time of the newest checkpoint."""
    replaces: bool
    """Whether every new checkpoint replaces an old one."""
    is_foreign: bool = False

    @property
    def bytes_s(self) -> float:
        return 0.0 if self.replaces else self.size / self.every_s

    @property
    def inodes_s(self) -> float:
        return 0.0 if self.replaces else self.inodes / self.every_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemObservation:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageMemory:
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Bytes and inodes of checkpoints, by train and name."""
    figures: tuple[float | None, ...] = ()
    moved: AwareDatetime | None = None
    """When the figures last changed."""
    samples: tuple[Sample, ...] = ()


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
            problem = f"{error.filename or target.path}: {error.strerror or error}"
            return FilesystemObservation(filesystem=filesystem, problem=problem)
        before = context.memory.recall(UsageMemory, self.name, filesystem.name)
        sizes = dict(before.sizes)
        growths = [measure_growth(train, filesystem.path, sizes) for train in context.trains]
        on_it = tuple(filter(None, growths))
        moved = before.moved if before.moved and before.figures == _figures(space) else context.now
        moved = min(moved, context.now)
        samples = _add_sample(before.samples, space, context.now)
        remembered = UsageMemory(sizes=sizes, figures=_figures(space), moved=moved, samples=samples)
        context.memory.remember(self.name, filesystem.name, remembered)
        wrote = max((growth.newest for growth in on_it), default=None)
        measured = FilesystemObservation(
            filesystem=filesystem,
            space=space,
            trains=on_it,
            observed_rate=measure_observed(samples),
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
        return replace(measured, users=tuple(users))

    def judge(self, observation: FilesystemObservation, now: datetime) -> list[Finding]:
        severity, says = _judged(observation, now)
        fastest = max(observation.trains, key=lambda growth: growth.bytes_s, default=None)
        return [
            Finding(
                key=f"{self.name}/{observation.filesystem.name}",
                severity=severity,
                says=says,
                details=_list_users(observation),
                fix=_advise_room(fastest) if severity in BAD else NO_REMEDY,
            )
        ]


def _advise_room(fastest: Growth | None) -> Remedy:
    """Return how to make room: opsctl removes checkpoints of the embedded trainer only."""
    if fastest is None:
        return advise("remedy.disk_of_others")
    if fastest.is_foreign:
        return advise("remedy.disk_of_foreign", ("opsctl", "checkpoint", "list", fastest.train))
    return advise("remedy.disk", ("opsctl", "checkpoint", "prune", fastest.train, "--keep-last", "5", "--dry-run"))


def _figures(space: Space) -> tuple[float | None, ...]:
    return (space.used, space.inodes_used, space.percent, space.inodes_percent)


def _add_sample(samples: Sequence[Sample], space: Space, now: datetime) -> tuple[Sample, ...]:
    """Return the samples with the usage now, one in ten minutes. Those from the future come from a broken clock."""
    past = [sample for sample in samples if sample[0] <= now.timestamp()]
    if space.used is not None and (not past or now.timestamp() - past[-1][0] >= SAMPLE_EVERY_S):
        past.append((now.timestamp(), space.used))
    return tuple(past[-SAMPLES:])


def _judged(observation: FilesystemObservation, now: datetime) -> tuple[Severity, Statement]:
    filesystem, space = observation.filesystem, observation.space
    if space is None:
        return Severity.UNKNOWN, state("disk.problem", name=filesystem.name, problem=observation.problem)
    shares = [_bytes(filesystem, space), _inodes(filesystem, space), *_hours(observation)]
    known = [share for share in shares if share]
    if not known:
        return Severity.UNKNOWN, state("disk.nothing_known", name=filesystem.name)
    worst = max((severity for severity, _ in known), key=attrgetter("rank"))
    if worst is Severity.OK and (stale := _stale(observation, now)):
        return Severity.UNKNOWN, stale
    parts = [says for severity, says in known if severity is worst]
    return worst, state("disk.usage", *parts, name=filesystem.name, path=filesystem.path)


def _bytes(filesystem: Filesystem, space: Space) -> tuple[Severity, Statement] | None:
    reliable = filesystem.reliable_percent / 100
    limit = space.limit if space.limit is not None else filesystem.limit
    if space.used is None or not limit:
        return _share(filesystem, space.percent / reliable, "space") if space.percent is not None else None
    left = limit * reliable - space.used
    figures: dict[str, Value] = {"used": format_size(space.used), "limit": format_size(limit)}
    if reliable < 1:
        figures["reliable_percent"] = filesystem.reliable_percent
    severity, says = _share(filesystem, 100 * space.used / (limit * reliable), "space", figures)
    if left >= filesystem.free:
        return severity, says
    needed = {"left_bytes": max(0, left), "needed_bytes": filesystem.free}
    return Severity.CRITICAL, replace(says, facts={**says.facts, **needed})


def _inodes(filesystem: Filesystem, space: Space) -> tuple[Severity, Statement] | None:
    limit = space.inodes_limit if space.inodes_limit is not None else filesystem.inode_limit
    if space.inodes_used is None or not limit:
        return _share(filesystem, space.inodes_percent, "inodes") if space.inodes_percent is not None else None
    figures = {"used": f"{space.inodes_used:,}", "limit": f"{limit:,}"}
    return _share(filesystem, 100 * space.inodes_used / limit, "inodes", figures)


def _share(
    filesystem: Filesystem, percent: float, resource: str, figures: Mapping[str, Value] | None = None
) -> tuple[Severity, Statement]:
    """Return severity and statement of a share in use; the reached limit is among the values of the statement."""
    severity, limit = Severity.OK, None
    if percent >= filesystem.warning_percent:
        severity, limit = Severity.WARNING, filesystem.warning_percent
    if percent >= filesystem.critical_percent:
        severity, limit = Severity.CRITICAL, filesystem.critical_percent
    facts: dict[str, Value] = {"used_percent": percent, "resource": resource, **(figures or {})}
    if limit is not None:
        facts |= {"severity": severity.value, "limit_percent": limit}
    return severity, state("disk.share", **facts)


def _hours(observation: FilesystemObservation) -> list[tuple[Severity, Statement]]:
    """Forecast when the file system is full, at the higher of the trains' rate and the observed rate."""
    filesystem, space = observation.filesystem, observation.space
    assert space is not None
    limit = space.limit if space.limit is not None else filesystem.limit
    inode_limit = space.inodes_limit if space.inodes_limit is not None else filesystem.inode_limit
    rate = max(sum(train.bytes_s for train in observation.trains), observation.observed_rate or 0.0)
    forecasts = []
    if rate > 0 and limit and space.used is not None:
        left = limit * filesystem.reliable_percent / 100 - space.used
        forecasts.append(_forecast(filesystem, left / rate / 3600, "space", format_size(rate * 86400)))
    inode_rate = sum(train.inodes_s for train in observation.trains)
    if inode_rate > 0 and inode_limit and space.inodes_used is not None:
        left = inode_limit - space.inodes_used
        forecasts.append(_forecast(filesystem, left / inode_rate / 3600, "inodes", f"{inode_rate * 86400:,.0f}"))
    return forecasts


def _forecast(filesystem: Filesystem, hours: float, resource: str, rate: str) -> tuple[Severity, Statement]:
    severity = Severity.OK
    if hours < filesystem.warning_hours:
        severity = Severity.CRITICAL if hours < filesystem.critical_hours else Severity.WARNING
    return severity, state(FORECAST, resource=resource, hours=max(0, hours), rate=rate)


def _stale(observation: FilesystemObservation, now: datetime) -> Statement | None:
    """Return why the figures are too old; None if they are current. Some systems update every half hour or never."""
    name = observation.filesystem.name
    limit = timedelta(minutes=observation.filesystem.stale_minutes)
    at = observation.space.at if observation.space else None
    if observation.filesystem.by == "du":
        limit += timedelta(minutes=observation.filesystem.every_minutes)
    if at and now - at > limit:
        return state("disk.stale", name=name, at=at, age_s=(now - at).total_seconds())
    unmoved = observation.unmoved_since
    if unmoved and now - unmoved > limit and observation.filesystem.by != "du":
        return state("disk.unmoved", name=name, age_s=(now - unmoved).total_seconds())
    return None


def _list_users(observation: FilesystemObservation) -> tuple[Statement, ...]:
    trains = [
        state(GROWTH, train=train.train, size_bytes=train.size, inodes=train.inodes, every_s=train.every_s)
        for train in observation.trains
        if train.bytes_s
    ]
    users = [
        state("disk.user", user=user.name, size_bytes=user.size, inodes=user.inodes, place=user.places[0])
        for user in observation.users
    ]
    return (*trains, *users)


def measure_growth(train: WatchedTrain, path: str, sizes: dict[str, tuple[int, int]]) -> Growth | None:
    """Return the train's growth on the file system at `path`.

    None if the train stores checkpoints elsewhere, is not queued, or has no checkpoint yet. The size of a checkpoint is
    measured once and stored in `sizes`. Raises OSError.
    """
    if train.snapshot is None or not train.snapshot.is_queued:
        return None
    saves, is_foreign = find_train_saves(train.run, train.config), not train.run.trainer_config.exists()
    gaps_s = [(after.at - before.at).total_seconds() for before, after in pairwise(saves) if after.at > before.at]
    every_s = expected_s(train) or (median(gaps_s[-20:]) if gaps_s else None)
    if not saves or not every_s or not _is_on(saves[-1].path, path):
        return None
    # The newest of a foreign trainer may still be being written.
    whole = saves[-2] if len(saves) > 1 and is_foreign else saves[-1]
    key = f"{train.name}/{whole.path.name}"
    if key not in sizes:
        sizes[key] = size_of(whole.path)
        for old in list(sizes)[:-MAX_SIZES_REMEMBERED]:
            del sizes[old]
    size, inodes = sizes[key]
    keep = read_checkpoint_table(train.run).get("keep_last", 0)
    return Growth(
        train=train.name,
        size=size,
        inodes=inodes,
        every_s=every_s,
        newest=saves[-1].at,
        replaces=0 < keep <= len(saves),
        is_foreign=is_foreign,
    )


def _is_on(directory: os.PathLike[str], path: str) -> bool:
    try:
        return os.stat(directory).st_dev == os.stat(path).st_dev  # noqa: PTH116 (two kinds of path)
    except OSError:
        return False


def measure_observed(samples: Sequence[Sequence[float]]) -> float | None:
    """Bytes a second since the oldest sample; None if that is not long ago, or if it became less."""
    if len(samples) < 2:
        return None
    (first, before), (last, after) = samples[0], samples[-1]
    return (after - before) / (last - first) if last - first >= WATCHED_S and after > before else None
