"""Load site.toml and TRAIN.toml: refuse unknown keys, report all problems together.

Below the composition root, no module reads a settings file or settings from the environment.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from opsctl.base.errors import ConfigError
from opsctl.base.tables import parse_toml, read_package_table
from opsctl.base.units import parse_slurm_minutes
from opsctl.settings.alerts import AlertSettings
from opsctl.settings.bounded_pattern import compile_bounded
from opsctl.settings.container import ContainerTable
from opsctl.settings.cron import CronSettings
from opsctl.settings.field_types import Duration, Name, SbatchOption, SettingsTable, Text, Word, must
from opsctl.settings.health import HealthSettings, PolicySettings, RemoteSettings
from opsctl.settings.publish import PublishTable
from opsctl.settings.rollback import RollbackSettings
from opsctl.settings.setup import ShellSetup
from opsctl.settings.watch import Filesystem, TrainWatchSettings, WatchSettings
from opsctl.trainer.bounded_files import read_bounded
from opsctl.trainer.config_problems import list_problems

PATTERN_GROUPS: tuple[str, ...] = tuple(read_package_table("settings/progress.toml")["groups"])
"""The groups of `pattern`; the unit is a part of the name."""


def check_step_pattern(pattern: str) -> str:
    """Return the pattern if it can be used for step lines. Raises ValueError."""
    if not pattern:
        return pattern
    names = compile_bounded(pattern).names
    if "step" not in names:
        raise ValueError(f"{pattern!r:.80} has no group `step`, such as step=(?P<step>\\d+)")
    if unknown := names - set(PATTERN_GROUPS):
        raise ValueError(f"unknown group {', '.join(sorted(unknown))}; known: {', '.join(PATTERN_GROUPS)}")
    return pattern


SaveDirectory = Annotated[str, must(lambda path: path and "\0" not in path, "{!r} is not a directory")]


class ProgressSettings(SettingsTable):
    """`[progress]` of TRAIN.toml: where the progress of a foreign trainer shows."""

    pattern: Annotated[str, AfterValidator(check_step_pattern)] = ""
    checkpoint_directories: tuple[SaveDirectory, ...] = ()


Variable = Annotated[str, must(re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch, "{!r} is not the name of a variable")]
TimeLimit = Annotated[
    str,
    must(
        lambda text: parse_slurm_minutes(text) is not None,
        "{!r} is not a time limit: minutes, MM:SS, HH:MM:SS or D-HH:MM:SS",
    ),
]


class SlurmDefaults(SettingsTable):
    """`[slurm]` of site.toml: defaults for every train."""

    partition: Word = ""
    account: Word = ""
    qos: Word = ""
    constraint: Word = ""
    conf: str = ""
    queue_seconds: float = Field(20, gt=0)
    timeout_seconds: float = Field(60, gt=0)


class KeepTable(SettingsTable):
    """How long the logs and the evidence of old attempts stay as they are: `[keep]` of site.toml, or of TRAIN.toml."""

    attempts: int = Field(20, ge=1)
    pack_days: float = Field(7, ge=0)
    delete_days: float = Field(0, ge=0)


class SiteSettings(SettingsTable):
    """site.toml: the settings that all trains share."""

    root: str
    engine: Literal["slurm", "sandbox"] = "slurm"
    sandbox: Name = "default"
    group: Word = ""
    site_owner: Word = ""
    trust_parents: bool = False
    slurm: SlurmDefaults = SlurmDefaults()
    alerts: AlertSettings = AlertSettings()
    cron: CronSettings = CronSettings()
    watch: WatchSettings = WatchSettings()
    remote: RemoteSettings = RemoteSettings()
    health: HealthSettings = HealthSettings()
    policy: PolicySettings = PolicySettings()
    filesystem: tuple[Filesystem, ...] = ()
    publish: PublishTable = PublishTable()
    keep: KeepTable = KeepTable()

    @property
    def root_path(self) -> Path:
        """The absolute path of `root`, with ~ and variables expanded."""
        return Path(os.path.expandvars(self.root)).expanduser().absolute()


class SlurmTable(SettingsTable):
    """`[slurm]` of TRAIN.toml: the resources, which cannot change for queued tasks."""

    nodes: int = Field(ge=1)
    spare_nodes: int = Field(0, ge=0)
    release_spares_after: Duration = 0
    processes_per_node: int = Field(1, ge=1)
    cpus_per_process: int = Field(1, ge=1)
    gpus_per_node: int = Field(0, ge=0)
    time_limit: TimeLimit
    tasks: int = Field(10, ge=1)
    partition: Word = ""
    account: Word = ""
    qos: Word = ""
    reservation: Word = ""
    constraint: Word = ""
    memory_per_node: Word = ""
    exclusive: bool = False
    nice: int | None = None
    exclude: Word = ""
    signal_seconds: int = Field(60, ge=0, le=65535)
    extra: tuple[SbatchOption, ...] = ()


OnExit0 = Literal["finish", "continue"]
StopSignal = Literal["none", "TERM", "INT", "HUP", "USR1", "USR2"]


class GuardSettings(SettingsTable):
    """`[guard]` of TRAIN.toml: limits of the guard and of crash loops."""

    short_attempt_minutes: float = Field(20, gt=0)
    short_attempts: int = Field(3, ge=1)
    fault_attempts: int = Field(2, ge=1)
    stalled_attempts: int = Field(5, ge=2)
    on_exit_0: OnExit0 | None = None
    diagnosis_seconds: float = Field(20, gt=0, le=100)
    node_check: bool | None = None
    node_check_seconds: float = Field(10, gt=0, le=60)
    flight_recorder: bool = False
    stop_signal: StopSignal | None = None
    stop_after_seconds: float | None = Field(None, ge=0)
    stop_grace_seconds: float = Field(120, gt=0)
    restart_in_place: bool = True
    restarts_per_hour: int = Field(6, ge=1)
    wait_for_repair: Duration = 0
    exit_grace_seconds: float = Field(60, gt=0)
    rank_logs: bool = False
    quiet_seconds: float | None = Field(None, ge=0)
    poll_seconds: float = Field(2, gt=0, le=60)
    deadline_seconds: float = Field(300, ge=5)


class HookSettings(SettingsTable):
    """`[hooks]` of TRAIN.toml: commands that bash runs for the owner of the train."""

    on_checkpoint: Text = ""
    on_attempt_end: Text = ""
    on_held: Text = ""
    on_finished: Text = ""
    timeout_seconds: float = Field(60, gt=0, le=600)


class PreflightSettings(SettingsTable):
    """`[preflight]` of TRAIN.toml: errors of preflight that do not refuse the train."""

    allow: tuple[Word, ...] = ()


class TrackerSettings(SettingsTable):
    """`[trackers]` of TRAIN.toml: the runs in experiment trackers."""

    continue_runs: bool = True


class TrainSettings(SettingsTable):
    """TRAIN.toml: one training run."""

    name: Name
    slurm: SlurmTable
    command: tuple[Text, ...] = ()
    trainer: dict[str, Any] | None = None
    python: Text = ""
    environment: dict[Variable, Text] = Field({})
    setup: ShellSetup = ShellSetup()
    container: ContainerTable | None = None
    guard: GuardSettings = GuardSettings()
    trackers: TrackerSettings = TrackerSettings()
    hooks: HookSettings = HookSettings()
    progress: ProgressSettings = ProgressSettings()
    rollback: RollbackSettings = RollbackSettings()
    watch: TrainWatchSettings = TrainWatchSettings()
    preflight: PreflightSettings = PreflightSettings()
    publish: PublishTable | None = None
    keep: KeepTable | None = None

    @model_validator(mode="after")
    def _one_trainer(self) -> Self:
        if bool(self.command) == (self.trainer is not None):
            raise ValueError(
                "either `command` (any trainer) or a [trainer] table (the embedded trainer) is needed, not both"
            )
        return self

    @model_validator(mode="after")
    def _command_in_container(self) -> Self:
        if self.container and not self.command:
            raise ValueError("[container] needs `command`: opsctl and its embedded trainer are not in the image")
        return self

    @property
    def world_size(self) -> int:
        """The number of processes of a task."""
        return self.slurm.nodes * self.slurm.processes_per_node


Model = TypeVar("Model", bound=BaseModel)
MAX_TOML_BYTES = 1 << 20


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file.

    Raises ConfigError for a file that is missing, not a file, too large, not text or not TOML.
    """
    try:
        return parse_toml(read_bounded(path, MAX_TOML_BYTES, follow=True).decode())
    except FileNotFoundError:
        raise ConfigError(str(path), ["no such file"], hint="opsctl init writes a first version") from None
    except (OSError, ValueError) as error:
        raise ConfigError(str(path), [describe_unreadable(error)]) from error


def parse(model: type[Model], mapping: Mapping[str, Any], where: str, extra: Sequence[str] = ()) -> Model:
    """Validate `mapping`. Raises ConfigError with the `extra` problems and all problems of the mapping."""
    problems = list(extra)
    try:
        parsed = model.model_validate(lists_to_tuples(mapping))
    except ValidationError as error:
        problems += list_problems(model, lists_to_tuples(mapping), error)
    if problems:
        raise ConfigError(where, problems)
    return parsed


def load_train(path: Path, *, layout: bool = True) -> TrainSettings:
    """Load a TRAIN.toml, with the settings of the embedded trainer. Raises ConfigError.

    Without `layout`, the parallel layout is not checked against the number of processes.
    """
    fields = read_toml(path)
    return parse(TrainSettings, fields, str(path), extra=find_trainer_problems(fields, layout=layout))


def load_site(path: Path) -> SiteSettings:
    """Load a site.toml. Raises ConfigError, also for a secret in clear in a file that other users can read."""
    site = parse(SiteSettings, read_toml(path), str(path))
    if path.stat().st_mode & 0o044:
        problems = [
            f"{place}: a secret in clear, in a file that other users can read" for place in site.alerts.in_clear()
        ]
        if problems:
            raise ConfigError(
                str(path), problems, hint="put the secret into a file, as with password_file, or chmod 600 this file"
            )
    return site


def find_site() -> Path | None:
    """Return the site file: $OPSCTL_SITE, else the user's, else the machine's; None without any."""
    from_environment = os.environ.get("OPSCTL_SITE")
    if from_environment:
        return Path(from_environment)
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    places = (user / "opsctl" / "site.toml", Path("/etc/opsctl/site.toml"))
    return next((place for place in places if place.is_file()), None)


def find_trainer_problems(mapping: Mapping[str, Any], *, layout: bool = True) -> list[str]:
    """Return the problems of the [trainer] table, alone and, with `layout`, for the number of processes in [slurm]."""
    table, slurm = mapping.get("trainer"), mapping.get("slurm", {})
    if not isinstance(table, dict):
        return []
    from opsctl.trainer.config import TrainerConfig  # noqa: PLC0415 (slow import: embedded trainer only)
    from opsctl.trainer.rank_layout import check_layout  # noqa: PLC0415 (as above)

    try:
        config = TrainerConfig.model_validate(table)
    except ValidationError as error:
        return list_problems(TrainerConfig, table, error, under=("trainer",))
    if not layout:
        return []
    try:
        world = int(slurm["nodes"]) * int(slurm.get("processes_per_node", 1))
    except (TypeError, ValueError, KeyError, AttributeError):
        return []  # the check of [slurm] reports these errors
    return [f"[trainer] {problem}" for problem in check_layout(config, world)]


def lists_to_tuples(value: Any) -> Any:
    """Return the value with every list replaced by a tuple, as frozen tables need."""
    if isinstance(value, dict):
        return {key: lists_to_tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(lists_to_tuples(item) for item in value)
    return value


def describe_unreadable(error: Exception) -> str:
    """Return why a settings file cannot be read."""
    match error:
        case OSError():
            return error.strerror or str(error)
        case UnicodeDecodeError():
            return f"not a text in UTF-8: byte {error.start + 1} is no part of one"
        case tomllib.TOMLDecodeError():
            return f"not valid TOML: {error}"
    return str(error)
