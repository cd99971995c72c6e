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
from opsctl.state.files import ARCHIVE_SUFFIX, find_archive, find_matches, is_directory, is_regular, read_change_s
from opsctl.state.lease import lease, refreshed
from opsctl.state.run_dir import RunDir

DAY_S = 86_400.0
READ_S = 3600.0
"""A process that has listed the originals reads them for no longer than this."""
BELOW_ATTEMPT = ("evidence", "flight", "repro", "step-times")
"""What is packed in the directory of an attempt; `flight` stands for the dumps of torch's flight recorder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepStep:
    verb: Literal["pack", "remove", "delete"]
    """`remove` the originals of an archive, `delete` an archive."""
    path: Path
    size: int


def read_keep_table(run: RunDir, site: SiteSettings) -> KeepTable:
    """Return [keep] of the train, or else of the site. Raises ConfigError."""
    table = read_toml(run.config).get("keep")
    return site.keep if table is None else parse(KeepTable, table, f"{run.config}: [keep]")


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
        original, changed_s = archive.name.removesuffix(ARCHIVE_SUFFIX), read_change_s(archive)
        is_log = archive.parent == run.logs
        attempt = original if is_log else archive.parent.name
        is_ours = attempt in names and (is_log or original in BELOW_ATTEMPT)  # a person may keep archives there, too
        is_old = keep.delete_days and changed_s and changed_s < now_s - keep.delete_days * DAY_S
        if is_ours and is_old and is_regular(archive):
            steps.append(KeepStep(verb="delete", path=archive, size=archive.lstat().st_size))
    return steps


def _plan_pack(path: Path, now_s: float) -> Iterator[KeepStep]:
    files, archive = find_own_files(path), find_archive(path)
    size = sum(file.lstat().st_size for file in files)
    if archive is None and files:
        yield KeepStep(verb="pack", path=path, size=size)
    elif archive and (files or is_directory(path)) and abs(now_s - archive.lstat().st_ctime) > READ_S:
        yield KeepStep(verb="remove", path=path, size=size)


def carry_out(steps: Sequence[KeepStep], run: RunDir, clock: Clock) -> None:
    """Carry out a plan. Raises OSError, RunDirError, LeaseBusy."""
    with lease(run.logs, clock, wait=0) as held, refreshed(held):
        for step in steps:
            match step.verb:
                case "pack":
                    pack(step.path, find_own_files(step.path))
                case "remove":
                    remove_packed(step.path, find_own_files(step.path))
                case "delete":
                    step.path.unlink()
