"""The settings of a launched train, as far as they can be read: for readers that must not fail."""

from opsctl.base.errors import OpsctlError
from opsctl.settings.loader import TrainSettings, load_train
from opsctl.state.files import MAX_SETTINGS_BYTES, is_regular, read_json
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


def read_checkpoint_table(run: RunDir) -> dict[str, int]:
    """Return the frozen [checkpoint] table of the embedded trainer; empty for another trainer.

    Values that are no positive whole numbers are left out: without `every`, the trainer saves only at its end.
    """
    try:
        table = read_json(run.trainer_config, MAX_SETTINGS_BYTES)["checkpoint"]
        return {key: value for key, value in table.items() if type(value) is int and value > 0}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OpsctlError):
        return {}
