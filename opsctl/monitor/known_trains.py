"""The trains to watch: all below the root, or while the root cannot be listed, those that were listed last."""

from collections.abc import Sequence
from pathlib import Path

from opsctl.alerts.transitions import SITE_ROOT
from opsctl.base.findings import Finding, Level
from opsctl.base.statements import state, type_now
from opsctl.settings.field_types import NAME
from opsctl.state.run_dir import RunDir
from opsctl.watchdogs.context import WatchdogMemory

MAX_REMEMBERED = 10_000
_PLACE = ("site", "trains")


def remember(memory: WatchdogMemory, runs: Sequence[RunDir]) -> None:
    memory.write(*_PLACE, {"names": [run.name for run in runs[:MAX_REMEMBERED]]})


def recall(memory: WatchdogMemory, root: Path) -> list[RunDir]:
    """Return the trains that were listed last. A train that has been removed since may be among them."""
    names = memory.read(*_PLACE).get("names")
    known = names[:MAX_REMEMBERED] if isinstance(names, list) else []
    return [RunDir(root / name) for name in known if isinstance(name, str) and NAME.fullmatch(name)]


def judge_root(problem: str, runs: Sequence[RunDir]) -> Finding:
    """Return the finding about the list of trains. `problem` is why the root cannot be listed; empty if it was."""
    if not problem:
        return Finding(key=SITE_ROOT, level=Level.OK, says=state("site.root_listed"))
    says = state("site.root_unlisted", problem=problem, trains=len(runs))
    return Finding(key=SITE_ROOT, level=Level.CRITICAL, says=says, fix=type_now(("opsctl", "doctor")))
