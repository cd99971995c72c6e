"""`[trackers]` of TRAIN.toml."""

from __future__ import annotations

from pydantic import Field

from opsctl.settings.field_types import SettingsTable


class TrackerSettings(SettingsTable):
    """`[trackers]` of TRAIN.toml: the runs in experiment trackers."""

    continue_runs: bool = Field(
        default=True,
        description="all attempts continue one run of Weights & Biases, Comet and MLflow: rank 0 gets the run id,"
        " unless the environment has one",
    )
