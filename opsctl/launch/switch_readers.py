"""Whether a trainer reads the files of opsctl, as far as its command shows, and save switches that are not answered."""

import re
from dataclasses import dataclass
from datetime import datetime

from opsctl.base.statements import Statement, state
from opsctl.checkpoints.trainer_command.read_command import SCRIPT_SUFFIXES, read_scripts
from opsctl.checkpoints.trainer_command.shell import split_command, strip_comments
from opsctl.state.files import MAX_SETTINGS_BYTES, is_regular, read_bounded
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch, read

READS_SAVE_SWITCH = re.compile(r"TRAIN_SAVE_SWITCH|\bopsctl(\.|_)(integrations|contract)")
READER_S, OTHER_S = 1800.0, 300.0
"""Time in which a save switch is answered, by a trainer that is known to read it, and by any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnansweredSave:
    """A save switch that the running task has not answered: the trainer removes the switch after its save."""

    age_s: float
    """Time since the switch was armed, or since the task started."""
    is_read: bool
    """Whether the trainer is known to read the switch."""

    @property
    def is_overdue(self) -> bool:
        return self.age_s > (READER_S if self.is_read else OTHER_S)

    @property
    def why(self) -> Statement:
        return state("checkpoint.not_saved") if self.is_read else state("checkpoint.not_read")


def names_in_body(run: RunDir, pattern: re.Pattern[str]) -> bool:
    """Return whether the trainer certainly reads a file: the embedded one, or a command that names what it belongs to.

    The body holds the rendered command. The scripts that the body names are searched as well.
    """
    if is_regular(run.trainer_config):
        return True
    try:
        body = read_bounded(run.body, MAX_SETTINGS_BYTES).decode(errors="replace")
    except OSError:
        return False
    changes = [line.removeprefix("cd -- ").strip("\"'") for line in body.splitlines() if line.startswith("cd -- ")]
    directory = run.path / changes[0] if changes else run.path
    texts = [body, *read_scripts(split_command([body]), directory, (".py", *SCRIPT_SUFFIXES)).values()]
    return any(pattern.search(strip_comments(text)) for text in texts)


def reads_save_switch(run: RunDir) -> bool:
    """Return whether the trainer certainly reads the save switch. Modules that its script imports are not searched."""
    return names_in_body(run, READS_SAVE_SWITCH)


def find_unanswered_save(run: RunDir, started: datetime | None, now: datetime) -> UnansweredSave | None:
    """Return the save switch that the task has not answered since `started`, its start; None without one."""
    armed = read(run, Switch.SAVE) if started else None
    if armed is None or started is None:
        return None
    return UnansweredSave(age_s=(now - max(armed.since, started)).total_seconds(), is_read=reads_save_switch(run))
