"""The settings of a launched train, as far as they can be read: for readers that must not fail."""

from __future__ import annotations

from opsctl.base.errors import OpsctlError
from opsctl.settings.loader import TrainSettings, load_train
from opsctl.state.files import is_regular
from opsctl.state.run_dir import RunDir


def read_settings(run: RunDir) -> TrainSettings | None:
    """Return the settings in the run directory; None if they cannot be read, or are those of another version."""
    try:
        return load_train(run.config, layout=False)
    except (OpsctlError, OSError):
        return None


def read_step_pattern(run: RunDir) -> str:
    """Return [progress] pattern of a train; empty for the embedded trainer, and if unknown."""
    try:
        if is_regular(run.trainer_config):
            return ""
    except OSError:
        return ""
    settings = read_settings(run)
    return settings.progress.pattern if settings else ""
