"""The variables that tell the trainer of an attempt where a rollback wants it to begin."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsctl.base.errors import ConfigError
from opsctl.checkpoints.scan import scan_directories
from opsctl.settings.loader import parse, read_toml
from opsctl.settings.rollback import RollbackSettings
from opsctl.state.run_dir import RunDir

log = logging.getLogger(__name__)


def make_rollback_env(run: RunDir) -> dict[str, str]:
    """Return the variables of a rolled back train: the words for the command, and the step while it is the newest.

    Without a rollback the values are empty. Never raises: settings that cannot be read are logged.
    """
    env = {"TRAIN_ROLLBACK_ARGUMENTS": "", "TRAIN_ROLLBACK_STEP": "", "TRAIN_ROLLBACK_CHECKPOINT": ""}
    try:
        table: Mapping[str, Any] = read_toml(run.config).get("rollback", {})
        settings = parse(RollbackSettings, table, f"{run.config}: [rollback]") if table else RollbackSettings()
    except ConfigError as error:
        log.warning("the command gets no words of [rollback]: %s", error.message)
        return env
    words = settings.lasting_words()
    if settings.step is not None and _is_newest(Path(settings.checkpoint)):
        words += settings.first_words()
        env |= {"TRAIN_ROLLBACK_STEP": str(settings.step), "TRAIN_ROLLBACK_CHECKPOINT": settings.checkpoint}
    return env | {"TRAIN_ROLLBACK_ARGUMENTS": shlex.join(words)}


def _is_newest(checkpoint: Path) -> bool:
    """Whether no newer checkpoint lies beside this one. The trainer begins at a newer one by itself."""
    newest = scan_directories([checkpoint.parent]).newest
    return newest is None or newest.path == checkpoint
