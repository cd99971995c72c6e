"""site.toml and TRAIN.toml, read once: unknown keys refused, every problem reported at once.

Nothing below the composition root reads the environment or a settings file; what it needs comes from here.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from opsctl.errors import ConfigError
from opsctl.settings.alerts import AlertSettings
from opsctl.settings.cron import CronSettings
from opsctl.settings.cross_field_checks import find_contradictions, tables_of
from opsctl.settings.field_types import Name, SbatchOption, SettingsTable, Word
from opsctl.settings.health import HealthSettings, RemoteSettings
from opsctl.settings.publish import PublishTable
from opsctl.settings.watch import Filesystem, TrainWatchSettings, WatchSettings
from opsctl.units import parse_slurm_minutes

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _check_time(text: str) -> str:
    if parse_slurm_minutes(text) is None:
        raise ValueError(f"{text!r} is not a time limit: minutes, MM:SS, HH:MM:SS or D-HH:MM:SS")
    return text


def _check_variable(name: str) -> str:
    if not VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} is not a variable's name")
    return name


def _check_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL byte, which no program can be given")
    return text


def _check_directory(path: str) -> str:
    if path and not path.startswith("/"):
        raise ValueError(f"{path!r} is not absolute: tasks start on other machines, weeks after this was typed")
    return path


Text = Annotated[str, AfterValidator(_check_text)]
Directory = Annotated[Text, AfterValidator(_check_directory)]
Variable = Annotated[str, AfterValidator(_check_variable)]
TimeLimit = Annotated[str, AfterValidator(_check_time)]


class SlurmDefaults(SettingsTable):
    """What every train of the site gets unless it says otherwise."""

    partition: Word = Field("", description="empty: Slurm's default")
    account: Word = Field("", description="empty: Slurm's default for you")
    qos: Word = Field("", description="empty: that of the account")
    constraint: Word = Field("", description="features that nodes must have, as sbatch --constraint has them")
    conf: str = Field("", description="path of slurm.conf, if the commands do not find it by themselves")


class SiteSettings(SettingsTable):
    """The cluster's facts: site.toml."""

    root: str = Field(description="the directory on the shared file system below which every train has its own")
    engine: Literal["slurm", "sandbox"] = Field("slurm", description="the site's Slurm, or `opsctl sandbox up`")
    sandbox: Name = Field("default", description="which sandbox, where the engine is one")
    group: Word = Field("", description="the Unix group that may arm switches and make requests; empty: the owner")
    trust_parents: bool = Field(
        default=False, description="accept parents of `root` that others can write: they could then run code as you"
    )
    slurm: SlurmDefaults = SlurmDefaults()
    alerts: AlertSettings = AlertSettings()
    cron: CronSettings = CronSettings()
    watch: WatchSettings = WatchSettings()
    remote: RemoteSettings = RemoteSettings()
    health: HealthSettings = HealthSettings()
    filesystem: tuple[Filesystem, ...] = ()
    publish: PublishTable = PublishTable()

    @property
    def root_path(self) -> Path:
        return Path(os.path.expandvars(self.root)).expanduser().absolute()


class SlurmTable(SettingsTable):
    """What sbatch freezes: it cannot change for tasks that are queued already."""

    nodes: int = Field(ge=1, description="of each task")
    processes_per_node: int = Field(1, ge=1, description="ranks on each node, as a rule one per GPU")
    cpus_per_process: int = Field(1, ge=1, description="CPUs for each rank")
    gpus_per_node: int = Field(0, ge=0, description="asked for on each node; 0: none")
    time_limit: TimeLimit = Field(description="of one task: minutes, HH:MM:SS or D-HH:MM:SS")
    tasks: int = Field(10, ge=1, description="array tasks to queue, one after the other")
    partition: Word = Field("", description="empty: the site's")
    account: Word = Field("", description="empty: the site's")
    qos: Word = Field("", description="empty: the site's")
    reservation: Word = Field("", description="the name of one that sets nodes aside")
    constraint: Word = Field("", description="empty: the site's")
    memory_per_node: Word = Field("", description="such as 500G; 0 for all of it")
    exclusive: bool = Field(default=False, description="nobody else's jobs on the nodes")
    nice: int | None = Field(None, description="lower the priority by this much")
    exclude: Word = Field("", description="nodes that the train must not get, such as node[003-005]")
    signal_seconds: int = Field(60, ge=0, le=65535, description="USR1 to the guard this long before the limit; 0: none")
    extra: tuple[SbatchOption, ...] = Field((), description="further sbatch options, word for word")


class ShellSetup(SettingsTable):
    """What the body does before the trainer starts, on the first node of the allocation."""

    directory: Directory = Field(
        "", description="where the trainer starts, and relative paths of its command with it; empty: its run directory"
    )
    modules: tuple[Word, ...] = Field((), description="for `module load`")
    lines: tuple[Text, ...] = Field((), description="shell, as written")


class GuardSettings(SettingsTable):
    """When the chain is stopped from burning itself."""

    short_attempt_minutes: float = Field(
        20, gt=0, description="an attempt shorter than this, without a new checkpoint, is short"
    )
    short_attempts: int = Field(3, ge=1, description="after this many short lives in a row, what is queued is held")
    fault_attempts: int = Field(
        2,
        ge=1,
        description="the same after this many lives in a row, short or not, that one fault of code or storage ended",
    )
    diagnosis_seconds: float = Field(
        20,
        gt=0,
        le=100,
        description="how long finding out why an attempt ended may take; after that the cause is unknown",
    )
    node_check: bool | None = Field(
        None, description="look at the nodes before the trainer starts; unset: where the train asks for GPUs"
    )
    node_check_seconds: float = Field(
        10, gt=0, le=60, description="how long that may take; a node that is late is unknown"
    )
    stop_grace_seconds: float = Field(
        120, gt=0, description="after TERM or preemption: the time to save and leave before the ranks are ended"
    )
    exit_grace_seconds: float = Field(
        60, gt=0, description="after a rank has failed: the time until the others are ended, where srun does not do it"
    )
    poll_seconds: float = Field(2, gt=0, le=60, description="how often the guard looks at switches and the job's end")


class TrainSettings(SettingsTable):
    """One training run: TRAIN.toml."""

    name: Name = Field(description="of its directory, of its jobs, and what you type")
    slurm: SlurmTable
    command: tuple[Text, ...] = Field(
        (), description="any trainer, word by word, run once per process; leave out to use the embedded one"
    )
    trainer: dict[str, Any] | None = Field(None, description="the embedded trainer's settings; not beside `command`")
    python: Text = Field("", description="the interpreter for the embedded trainer; empty: the one that opsctl runs on")
    environment: dict[Variable, Text] = Field({}, description="exported before the setup lines")
    setup: ShellSetup = ShellSetup()
    guard: GuardSettings = GuardSettings()
    watch: TrainWatchSettings = TrainWatchSettings()
    publish: PublishTable | None = Field(None, description="instead of the site's")

    @model_validator(mode="after")
    def _one_trainer(self) -> TrainSettings:
        if bool(self.command) == (self.trainer is not None):
            raise ValueError("needs either `command` (any trainer) or a [trainer] table (the embedded one), not both")
        return self

    @property
    def world_size(self) -> int:
        return self.slurm.nodes * self.slurm.processes_per_node


Model = TypeVar("Model", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """Raises ConfigError for a file that is missing, not text or not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(str(path), ["no such file"], hint="opsctl config init writes a starter") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(str(path), [str(error)]) from error


def parse(model: type[Model], mapping: Mapping[str, Any], where: str, extra: Sequence[str] = ()) -> Model:
    """Raises ConfigError with every problem in `given`, after the `extra` ones."""
    problems = list(extra)
    try:
        parsed = model.model_validate(_lists_to_tuples(mapping))
    except ValidationError as error:
        problems += _problems(model, _lists_to_tuples(mapping), error)
    if problems:
        raise ConfigError(where, problems)
    return parsed


def load_train(path: Path, *, layout: bool = True) -> TrainSettings:
    """The train described by the file at `path`, its embedded trainer's settings checked too; without `layout`, not
    whether they can be laid out over its processes."""
    fields = read_toml(path)
    return parse(TrainSettings, fields, str(path), extra=find_trainer_problems(fields, layout=layout))


def load_site(path: Path) -> SiteSettings:
    """The site described by the file at `path`. Raises ConfigError, also for a secret that others can read there."""
    site = parse(SiteSettings, read_toml(path), str(path))
    if path.stat().st_mode & 0o044:
        problems = [f"{place}: a secret in clear, in a file that others can read" for place in site.alerts.in_clear()]
        if problems:
            raise ConfigError(
                str(path), problems, hint="name a file instead, as in password_file, or chmod 600 this one"
            )
    return site


def find_site() -> Path | None:
    """The site file: $OPSCTL_SITE, else the user's, else the machine's; None where there is none."""
    if named := os.environ.get("OPSCTL_SITE"):
        return Path(named)
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    places = (user / "opsctl" / "site.toml", Path("/etc/opsctl/site.toml"))
    return next((place for place in places if place.is_file()), None)


def state_home() -> Path:
    """Where opsctl keeps what belongs to this user on this machine alone."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "opsctl"


def find_trainer_problems(mapping: Mapping[str, Any], *, layout: bool = True) -> list[str]:
    """What is wrong with the [trainer] table, alone and for the number of processes that [slurm] asks for."""
    table, slurm = mapping.get("trainer"), mapping.get("slurm", {})
    if not isinstance(table, dict):
        return []
    from opsctl.trainer.config import TrainerConfig  # noqa: PLC0415 (only a train with the embedded trainer pays for it)
    from opsctl.trainer.rank_layout import check_layout  # noqa: PLC0415 (as above)

    try:
        config = TrainerConfig.model_validate(table)
    except ValidationError as error:
        return _problems(TrainerConfig, table, error, under=("trainer",))
    if not layout:
        return []
    try:
        world = int(slurm["nodes"]) * int(slurm.get("processes_per_node", 1))
    except (TypeError, ValueError, KeyError, AttributeError):
        return []  # [slurm] is wrong itself, which its own check says
    return [f"[trainer] {problem}" for problem in check_layout(config, world)]


def _lists_to_tuples(value: Any) -> Any:
    """TOML has lists; a frozen record has tuples."""
    if isinstance(value, dict):
        return {key: _lists_to_tuples(each) for key, each in value.items()}
    return tuple(_lists_to_tuples(each) for each in value) if isinstance(value, list) else value


def _is_echo(error: Any) -> bool:
    """A list that is only too short because what stands in it is wrong, which is said already."""
    return bool(error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"])


def _problems(model: type[BaseModel], given: Any, error: ValidationError, under: tuple[str, ...] = ()) -> list[str]:
    """Of each field alone, and then of the fields together."""
    errors = [error_details for error_details in error.errors() if not _is_echo(error_details)]
    together = [
        {"loc": place, "type": "value_error", "msg": text, "input": None}
        for place, text in find_contradictions(model, given, [error_details["loc"] for error_details in errors])
    ]
    return [_problem(model, each, under=under) for each in (*errors, *together)]


def _problem(model: type[BaseModel], error: Any, under: tuple[str, ...] = ()) -> str:
    # pydantic names the key of a dictionary, and then that it is one.
    *tables, key = [*under, *(each for each in _walk(model, error["loc"])[1] if each != "[key]")] or [""]
    place = f"[{'.'.join(tables)}] {key}" if tables else key
    if error["type"] == "extra_forbidden":
        models, _ = _walk(model, error["loc"][:-1])
        known = sorted({name for each in models for name in each.model_fields})
        near = get_close_matches(str(key), known, 1)
        advice = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        return f"{place}: unknown key; {advice}"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "missing":
        return f"{place}: missing"
    # A whole table may hold a secret.
    is_shown = error["type"] != "value_error" and not isinstance(error["input"], dict)
    given = f", got {error['input']!r:.60}" if is_shown else ""
    return f"{place}: {message}{given}" if place else f"{message}{given}"


def _walk(model: type[BaseModel], loc: Sequence[Any]) -> tuple[list[type[BaseModel]], list[str]]:
    """What may stand in the table at `loc`, and its name as it stands in the file: pydantic adds the kind that it took
    a table of several kinds for."""
    models, tables = [model], []
    for key in loc:
        fields = [each.model_fields[str(key)] for each in models if str(key) in each.model_fields]
        kinds = [
            each
            for each in models
            if "kind" in each.model_fields and get_args(each.model_fields["kind"].annotation) == (key,)
        ]
        models = [each for field in fields for each in tables_of(field.annotation)] or kinds or models
        tables += [] if kinds and not fields else [str(key)]
    return models, tables
