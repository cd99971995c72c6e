"""Load site.toml and TRAIN.toml: refuse unknown keys, report all problems together.

Below the composition root, no module reads a settings file or settings from the environment.
"""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from opsctl.base.errors import ConfigError
from opsctl.base.tables import parse_toml
from opsctl.base.units import parse_slurm_minutes
from opsctl.settings.alerts import AlertSettings
from opsctl.settings.container import ContainerTable
from opsctl.settings.cron import CronSettings
from opsctl.settings.field_types import Duration, Name, SbatchOption, SettingsTable, Text, Word, must
from opsctl.settings.health import HealthSettings, PolicySettings, RemoteSettings
from opsctl.settings.progress import ProgressSettings
from opsctl.settings.publish import PublishTable
from opsctl.settings.rollback import RollbackSettings
from opsctl.settings.setup import ShellSetup
from opsctl.settings.watch import Filesystem, TrainWatchSettings, WatchSettings
from opsctl.trainer.bounded_files import read_bounded
from opsctl.trainer.config_problems import list_problems

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

    partition: Word = Field("", description="default partition; empty: Slurm's default")
    account: Word = Field("", description="default account; empty: your default account")
    qos: Word = Field("", description="default QOS; empty: that of the account")
    constraint: Word = Field("", description="features that nodes must have, as for #SBATCH --constraint")
    conf: str = Field("", description="path of slurm.conf, if Slurm's commands do not find the file by themselves")
    queue_seconds: float = Field(20, gt=0, description="age up to which pages and viewers share one list of the queue")
    timeout_seconds: float = Field(60, gt=0, description="time limit of one command; best above Slurm's MessageTimeout")


class SiteSettings(SettingsTable):
    """site.toml: the settings that all trains share."""

    root: str = Field(description="directory on the shared file system that contains the run directories")
    engine: Literal["slurm", "sandbox"] = Field(
        "slurm", description="slurm: the site's Slurm; sandbox: the one that `opsctl sandbox up` starts"
    )
    sandbox: Name = Field("default", description="name of the sandbox, with engine = sandbox")
    group: Word = Field("", description="Unix group that may arm switches and make requests; empty: the owner only")
    site_owner: Word = Field(
        "", description="user whose `.site` directory below `root` is trusted; empty: you, and the owner of `root`"
    )
    trust_parents: bool = Field(
        default=False,
        description="accept parents of `root` that other users can write: those users could run code as you",
    )
    slurm: SlurmDefaults = SlurmDefaults()
    alerts: AlertSettings = AlertSettings()
    cron: CronSettings = CronSettings()
    watch: WatchSettings = WatchSettings()
    remote: RemoteSettings = RemoteSettings()
    health: HealthSettings = HealthSettings()
    policy: PolicySettings = PolicySettings()
    filesystem: tuple[Filesystem, ...] = ()
    publish: PublishTable = PublishTable()

    @property
    def root_path(self) -> Path:
        """The absolute path of `root`, with ~ and variables expanded."""
        return Path(os.path.expandvars(self.root)).expanduser().absolute()


class SlurmTable(SettingsTable):
    """`[slurm]` of TRAIN.toml: the resources, which cannot change for queued tasks."""

    nodes: int = Field(ge=1, description="nodes of a task that run ranks")
    spare_nodes: int = Field(
        0, ge=0, description="more nodes of a task, which wait to replace a node that is lost or faulty"
    )
    release_spares_after: Duration = Field(
        0, description="how long an attempt runs until its unused spare nodes go back to Slurm; 0: they stay"
    )
    processes_per_node: int = Field(1, ge=1, description="ranks on a node, usually one per GPU")
    cpus_per_process: int = Field(1, ge=1, description="CPUs of a rank")
    gpus_per_node: int = Field(0, ge=0, description="GPUs of a node; 0: none")
    time_limit: TimeLimit = Field(description="time limit of a task: minutes, HH:MM:SS or D-HH:MM:SS")
    tasks: int = Field(10, ge=1, description="array tasks to queue, which run one after the other")
    partition: Word = Field("", description="partition; empty: the site's")
    account: Word = Field("", description="account; empty: the site's")
    qos: Word = Field("", description="QOS; empty: the site's")
    reservation: Word = Field("", description="reservation to run in")
    constraint: Word = Field("", description="features that nodes must have; empty: the site's")
    memory_per_node: Word = Field("", description="memory of a node, such as 500G; 0: all memory")
    exclusive: bool = Field(default=False, description="share the nodes with no other job")
    nice: int | None = Field(None, description="number by which the priority is lowered")
    exclude: Word = Field("", description="nodes that the train must not use, such as node[003-005]")
    signal_seconds: int = Field(
        60, ge=0, le=65535, description="seconds before the time limit at which the guard gets USR1; 0: no signal"
    )
    extra: tuple[SbatchOption, ...] = Field((), description="more #SBATCH options, passed unchanged")


OnExit0 = Literal["finish", "continue"]
StopSignal = Literal["none", "TERM", "INT", "HUP", "USR1", "USR2"]


class GuardSettings(SettingsTable):
    """`[guard]` of TRAIN.toml: limits of the guard and of crash loops."""

    short_attempt_minutes: float = Field(
        20, gt=0, description="an attempt that is shorter and did not advance the train counts as short"
    )
    short_attempts: int = Field(3, ge=1, description="consecutive short attempts after which the queued tasks are held")
    fault_attempts: int = Field(
        2,
        ge=1,
        description="consecutive attempts with the same code or storage fault after which the queued tasks are held",
    )
    stalled_attempts: int = Field(
        5,
        ge=2,
        description="consecutive attempts of any length that did not advance the train, as its steps or"
        " checkpoints show, after which the queued tasks are held",
    )
    on_exit_0: OnExit0 | None = Field(
        None,
        description="when the trainer exits with 0 without a stop request: finish: the training is over; continue: the"
        " next task goes on; unset: continue if the log shows steps left, a stop of the trainer, or a near time limit;"
        " hold if nothing shows that the trainer trained",
    )
    diagnosis_seconds: float = Field(
        20,
        gt=0,
        le=100,
        description="time limit of the diagnosis, after which the cause is unknown",
    )
    node_check: bool | None = Field(
        None, description="check the nodes before the trainer starts; unset: if the train uses GPUs"
    )
    node_check_seconds: float = Field(
        10, gt=0, le=60, description="time limit of the node check; a late node is unknown"
    )
    flight_recorder: bool = Field(
        default=False,
        description="have torch record its last collectives, and write them at a time-out, for opsctl why",
    )
    stop_signal: StopSignal | None = Field(
        None,
        description="signal to the ranks of a trainer that does not react to the stop request; none: no signal; unset:"
        " TERM after a kill or pause switch, no signal at the time limit",
    )
    stop_after_seconds: float | None = Field(
        None,
        ge=0,
        description="time from the stop request to the signal; unset: 300 for a trainer that reads the stop request, 60"
        " for any other",
    )
    stop_grace_seconds: float = Field(
        120, gt=0, description="time to save and exit after a signal, TERM or preemption, before the ranks are ended"
    )
    restart_in_place: bool = Field(
        default=True,
        description="start the trainer again in the same allocation after a failure that the allocation survives;"
        " false: give the nodes back at every failure",
    )
    restarts_per_hour: int = Field(
        6,
        ge=1,
        description="starts within an hour in one allocation, without a new checkpoint, after which the nodes go back",
    )
    wait_for_repair: Duration = Field(
        0,
        description="how long the nodes of a train that is held for a repeated fault wait for `opsctl edit`, `release`"
        " or `restart`, after which the trainer starts at once; 0: the nodes go back",
    )
    exit_grace_seconds: float = Field(
        60, gt=0, description="time after the failure of a rank until the guard ends the others, if Slurm does not"
    )
    quiet_seconds: float | None = Field(
        None,
        ge=0,
        description="time without progress, while a rank is stopped by a signal or no rank uses the CPU, until the"
        " guard ends the hung attempt; 0: never; unset: learnt from the rhythm of the log, at least 20 for a stopped"
        " rank and 45 for idle ranks; 300 if a restart costs the nodes, or if the last attempt hung",
    )
    poll_seconds: float = Field(2, gt=0, le=60, description="time between two checks of switches and ranks")
    deadline_seconds: float = Field(300, ge=5, description="time between two questions to Slurm for the job's end")


class HookSettings(SettingsTable):
    """`[hooks]` of TRAIN.toml: commands that bash runs for the owner of the train."""

    on_checkpoint: Text = Field("", description="command after a new complete checkpoint")
    on_attempt_end: Text = Field("", description="command after the end of each attempt")
    on_held: Text = Field("", description="command after the queued tasks were held")
    on_finished: Text = Field("", description="command after the training was finished")
    timeout_seconds: float = Field(60, gt=0, le=600, description="seconds after which a hook is ended")


class PreflightSettings(SettingsTable):
    """`[preflight]` of TRAIN.toml: errors of preflight that do not refuse the train."""

    allow: tuple[Word, ...] = Field(
        (), description="checks whose errors become warnings, such as batch; launch and edit journal each error"
    )


class TrackerSettings(SettingsTable):
    """`[trackers]` of TRAIN.toml: the runs in experiment trackers."""

    continue_runs: bool = Field(
        default=True,
        description="all attempts continue one run of Weights & Biases, Comet and MLflow: rank 0 gets the run id,"
        " unless the environment has one",
    )


class TrainSettings(SettingsTable):
    """TRAIN.toml: one training run."""

    name: Name = Field(description="name of the train, of its directory and of its jobs")
    slurm: SlurmTable
    command: tuple[Text, ...] = Field(
        (),
        description="any trainer: the program and its arguments, started once per process; unset: the embedded trainer",
    )
    trainer: dict[str, Any] | None = Field(None, description="settings of the embedded trainer; excludes `command`")
    python: Text = Field("", description="Python interpreter of the embedded trainer; empty: that of opsctl")
    environment: dict[Variable, Text] = Field({}, description="environment variables, exported before the setup lines")
    setup: ShellSetup = ShellSetup()
    container: ContainerTable | None = Field(None, description="run the ranks in a container; needs `command`")
    guard: GuardSettings = GuardSettings()
    trackers: TrackerSettings = TrackerSettings()
    hooks: HookSettings = HookSettings()
    progress: ProgressSettings = ProgressSettings()
    rollback: RollbackSettings = RollbackSettings()
    watch: TrainWatchSettings = TrainWatchSettings()
    preflight: PreflightSettings = PreflightSettings()
    publish: PublishTable | None = Field(None, description="replaces [publish] of the site")

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
        parsed = model.model_validate(_lists_to_tuples(mapping))
    except ValidationError as error:
        problems += list_problems(model, _lists_to_tuples(mapping), error)
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


def _lists_to_tuples(value: Any) -> Any:
    """Return the value with every list replaced by a tuple, as frozen tables need."""
    if isinstance(value, dict):
        return {key: _lists_to_tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_lists_to_tuples(item) for item in value)
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
