"""Keep the files of trains within bounds, by `[keep]`: pack what is old, delete it only where the settings say so.

cli/written_files.toml lists everything that grows. Attempts that are not finalized, and the newest, are never touched,
and of the others only regular files of this user below the run directory. A plan is printed, or carried out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from opsctl.base.ports import Clock
from opsctl.settings.loader import KeepTable, SiteSettings, parse, read_toml
from opsctl.state.archive import find_own_files, pack, remove_packed
from opsctl.state.files import (
    ARCHIVE_SUFFIX,
    find_archive,
    find_matches,
    is_directory,
    is_regular,
    list_parts,
    name_part,
    number_part,
    read_change_s,
    read_size_bytes,
)
from opsctl.state.lease import lease, refreshed
from opsctl.state.run_dir import MAIN_LOG, RunDir

DAY_S = 86_400.0
READ_S = 3600.0
"""A process that has listed the originals reads them for no longer than this."""
BELOW_ATTEMPT = ("evidence", "flight", "repro", "step-times")
"""What is packed in the directory of an attempt; `flight` stands for the dumps of torch's flight recorder."""
OTHER_LOGS = ("pulse.log", "hooks.log")
"""Written line by line: set aside at any time. main_log is set aside by the guard, when no process writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepStep:
    verb: Literal["pack", "remove", "delete", "set aside"]
    """`remove` the originals of an archive, `delete` an archive, `set aside` a long file, which then begins anew."""
    path: Path
    size: int


def read_keep_table(run: RunDir, site: SiteSettings) -> KeepTable:
    """Return [keep] of the train, or else of the site. Raises ConfigError."""
    table = read_toml(run.config).get("keep")
    return site.keep if table is None else parse(KeepTable, table, f"{run.config}: [keep]")


def plan_train(run: RunDir, site: SiteSettings, now: datetime) -> list[KeepStep]:
    """Return what is due of a train. Raises ConfigError, OSError."""
    return plan(run, read_keep_table(run, site), now)


def plan(run: RunDir, keep: KeepTable, now: datetime) -> list[KeepStep]:
    """Return what is due. Raises OSError."""
    attempts, now_s = run.path / "attempts", now.timestamp()
    if not (is_directory(run.logs) and is_directory(attempts)):
        return []
    steps: list[KeepStep] = []
    finalized = sorted((at, attempt.name) for attempt in run.attempts() if (at := read_change_s(attempt.end)))
    for ended_s, name in finalized[: -keep.attempts]:
        if keep.pack_days and ended_s < now_s - keep.pack_days * DAY_S:
            for path in (run.logs / name, *(attempts / name / part for part in BELOW_ATTEMPT)):
                steps += _plan_pack(path, now_s)
    names = {name for _, name in finalized}
    for archive in [*find_matches(run.logs, f"*{ARCHIVE_SUFFIX}"), *find_matches(attempts, f"*/*{ARCHIVE_SUFFIX}")]:
        original, is_log = archive.name.removesuffix(ARCHIVE_SUFFIX), archive.parent == run.logs
        attempt = original if is_log else archive.parent.name
        if attempt in names and (is_log or original in BELOW_ATTEMPT):  # a person may keep archives there, too
            steps += _plan_delete(archive, keep, now_s)
    return [*steps, *_plan_parts(run.logs / MAIN_LOG, keep, now_s), *plan_growing(run.logs, OTHER_LOGS, keep, now)]


def plan_growing(directory: Path, patterns: Sequence[str], keep: KeepTable, now: datetime) -> list[KeepStep]:
    """Return what is due of files to which whole lines are appended. Raises OSError."""
    steps: list[KeepStep] = []
    for pattern in patterns:
        for path in find_matches(directory, pattern):
            if path not in list_parts(path.with_name(f"{Path(path.stem).stem}{path.suffix}")):
                steps += [*_plan_set_aside(path, keep), *_plan_parts(path, keep, now.timestamp())]
    return steps


def _plan_pack(path: Path, now_s: float) -> Iterator[KeepStep]:
    files, archive = find_own_files(path), find_archive(path)
    size = sum(file.lstat().st_size for file in files)
    if archive is None and files:
        yield KeepStep(verb="pack", path=path, size=size)
    elif archive and (files or is_directory(path)) and abs(now_s - archive.lstat().st_ctime) > READ_S:
        yield KeepStep(verb="remove", path=path, size=size)


def _plan_set_aside(path: Path, keep: KeepTable) -> Iterator[KeepStep]:
    if read_size_bytes(path) > keep.log_size and find_own_files(path):
        yield KeepStep(verb="set aside", path=path, size=read_size_bytes(path))


def _plan_parts(path: Path, keep: KeepTable, now_s: float) -> Iterator[KeepStep]:
    """Plan what is due of the parts of a growing file, but the newest: it may be the end of the log of a train at rest."""
    for part in list_parts(path)[:-1]:
        archive = find_archive(part)
        if keep.pack_days and (read_change_s(archive or part) or now_s) < now_s - keep.pack_days * DAY_S:
            yield from _plan_pack(part, now_s)
        if archive:
            yield from _plan_delete(archive, keep, now_s)


def _plan_delete(archive: Path, keep: KeepTable, now_s: float) -> Iterator[KeepStep]:
    changed_s = read_change_s(archive)
    if keep.delete_days and changed_s and changed_s < now_s - keep.delete_days * DAY_S and is_regular(archive):
        yield KeepStep(verb="delete", path=archive, size=archive.lstat().st_size)


def plan_main_log(run: RunDir, keep: KeepTable) -> list[KeepStep]:
    """Return whether main_log is to be set aside: only for a job that is the only one, and writes no more to it."""
    return [*_plan_set_aside(run.logs / MAIN_LOG, keep)]


def carry_out(steps: Sequence[KeepStep], directory: Path, clock: Clock) -> None:
    """Carry out a plan, one process at a time in a directory. Raises OSError, RunDirError, LeaseBusy."""
    with lease(directory, clock, wait=0) as held, refreshed(held):
        for step in steps:
            match step.verb:
                case "pack":
                    pack(step.path, find_own_files(step.path))
                case "remove":
                    remove_packed(step.path, find_own_files(step.path))
                case "delete":
                    step.path.unlink()
                case "set aside":
                    step.path.rename(name_part(step.path, number_part(step.path)))
