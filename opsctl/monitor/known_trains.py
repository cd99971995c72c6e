"""The trains to watch: all below the root, or while the root cannot be listed, those that were listed last."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from opsctl.alerts.transitions import SITE_ROOT
from opsctl.base.findings import Finding, Level
from opsctl.base.statements import state, type_now
from opsctl.settings.field_types import NAME
from opsctl.state.run_dir import RunDir
from opsctl.watchdogs.context import WatchdogMemory

MAX_REMEMBERED = 10_000
_PLACE, _COPY = ("site", "trains"), ("site", "root")


def remember(memory: WatchdogMemory, root: Path, runs: Sequence[RunDir]) -> None:
    """Remember the list; also outside of the root, since a root that is gone takes with it what lies there."""
    fields = {"names": [run.name for run in runs[:MAX_REMEMBERED]], "inode": _read_inode(root)}
    memory.write(*_PLACE, fields)
    if memory.spare:
        WatchdogMemory(memory.spare, memory.problems).write(*_COPY, fields)


def recall(memory: WatchdogMemory, root: Path) -> tuple[list[RunDir], object]:
    """Return the trains that were listed last, perhaps removed since, and the inode of the root that had them."""
    fields = memory.read(*_PLACE) or WatchdogMemory(memory.spare or memory.directory).read(*_COPY)
    names = fields.get("names")
    known = names[:MAX_REMEMBERED] if isinstance(names, list) else []
    runs = [RunDir(root / name) for name in known if isinstance(name, str) and NAME.fullmatch(name)]
    return runs, fields.get("inode")


def has_listed(spare: Path) -> bool:
    """Whether this user has listed the root before as the owner of its alerts, and so goes on where it is gone."""
    return bool(WatchdogMemory(spare).read(*_COPY))


def find_other_root(known: Collection[RunDir], inode: object, root: Path, runs: Collection[RunDir]) -> str:
    """Return why `root` is not the directory that had the `known` trains, such as one below a mount that is gone."""
    is_other = bool(known and inode) and not any(run in known for run in runs) and inode != _read_inode(root)
    return f"{root}: another directory than before: is the file system mounted?" if is_other else ""


def _read_inode(root: Path) -> int:
    with suppress(OSError):
        return root.stat().st_ino
    return 0


def judge_root(problem: str, runs: Sequence[RunDir]) -> Finding:
    """Return the finding about the list of trains. `problem` is why the root cannot be listed; empty if it was."""
    if not problem:
        return Finding(key=SITE_ROOT, level=Level.OK, says=state("site.root_listed"))
    says = state("site.root_unlisted", problem=problem, trains=len(runs))
    return Finding(key=SITE_ROOT, level=Level.CRITICAL, says=says, fix=type_now(("opsctl", "doctor")))
