"""Files of a train that are there and cannot be read: what they held is unknown, and decisions go on without it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from opsctl.base.errors import RunDirError
from opsctl.guard.attempt_record import Start
from opsctl.guard.dossier import has_damaged_stop_reason
from opsctl.guard.end_record import FinishedAttempt
from opsctl.guard.stop_request import StopRequest
from opsctl.launch.rollback_state import RollbackRecord, StartedRollback, records_dir, start_path
from opsctl.state.files import find_matches
from opsctl.state.journal import Journal, replay
from opsctl.state.records import decode, load_state

NEWEST_ATTEMPTS = 5
"""The rules about attempts in a row look at no more by default."""


def list_damages(journal: Journal) -> list[str]:
    """Return a line for each part of the journal, and each record of its train, that cannot be read.

    Raises RunDirError for a journal that cannot be read at all.
    """
    run, events = journal.run, journal.events()
    newest = [run.attempt(name) for name in replay(events).attempts[-NEWEST_ATTEMPTS:]]
    records: list[tuple[Path, Callable[..., Any]]] = [
        *((attempt.start, partial(decode, Start)) for attempt in newest),
        *((attempt.end, partial(decode, FinishedAttempt)) for attempt in newest),
        *((attempt.stop_request, partial(decode, StopRequest)) for attempt in newest),
        *((attempt.body_exit, int) for attempt in newest),
        *((path, partial(decode, RollbackRecord)) for path in find_matches(records_dir(run), "[0-9]*.json")),
        (start_path(run), partial(decode, StartedRollback)),
        *((run.path / name, dict.items) for name in ("trainer.json", "code.json", "publish/state.json")),
    ]
    damages = journal.list_damages(events)
    damages += [f"{attempt.stop_reason}: cannot be read" for attempt in newest if has_damaged_stop_reason(attempt)]
    for path, parse in records:
        try:
            load_state(parse, path)
        except RunDirError as error:
            damages.append(error.message)
    return damages
