"""The record of an attempt's start (start.json), and the environment of its body."""

import contextlib
import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from opsctl.base.errors import ConfigError, InputError
from opsctl.base.nodesets import expand_if_list
from opsctl.checkpoints.scan import scan_directories
from opsctl.guard.newest_checkpoint import find_newest
from opsctl.launch.code_freeze import read_record
from opsctl.settings.loader import GuardSettings, parse, read_toml
from opsctl.settings.rollback import RollbackSettings
from opsctl.slurm.job_environment import (
    HOST_FILE,
    count_nodes,
    count_restarts,
    limit_to_nodes,
    list_allocated,
    list_hosts,
    own_gpus,
    own_job,
    own_node,
    own_nodes,
    own_task,
)
from opsctl.state.files import close_to_others, read_size_bytes
from opsctl.state.records import load_record, to_text
from opsctl.state.run_dir import FLIGHT_DUMP_PREFIX, Attempt, RunDir
from opsctl.state.site_dir import SiteDir
from opsctl.state.switches import Switch, path_of
from opsctl.trainer.contract import Env

log = logging.getLogger(__name__)
FLIGHT_RECORDER_ENTRIES = 2000
"""Collectives that torch keeps for each rank: about 1 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The content of start.json."""

    attempt: str
    job: str
    """Slurm's job id, which every array task has besides its array id."""
    nodes: str
    node_count: int
    gpus: str
    """The GPUs of the first node, as Slurm lists them."""
    node: str
    """The node on which the guard runs."""
    at: datetime
    checkpoint: int
    """A mark of the newest checkpoint. The mark grows with every new checkpoint."""
    main_log: int = 0
    """Size of main_log in bytes at the start. Later bytes belong to this attempt."""
    code: str = ""
    """Hash of the frozen code; empty without a freeze."""
    restarts: int | None = None
    """How often Slurm had started the job anew; None in records from before there were restarts in place."""
    commit: str = ""
    """Commit of the frozen code, `+N` for N changed files; empty without `freeze = "git"`."""


def check_batch_job(env: Mapping[str, str]) -> None:
    """Raise InputError outside a batch job."""
    if not own_job(env):
        raise InputError("this is not a batch job: Slurm has set no job ID", hint="opsctl launch submits trains")


def claim_attempt(run: RunDir, env: Mapping[str, str]) -> Attempt:
    """Make the directory of the next start of this task, exclusively: Slurm may start a task twice without counting.

    Without space for a directory, the attempt has the next free name. Raises nothing.
    """
    number = 0
    while (attempt := run.attempt(f"{own_task(env)}.{number}")).path.exists() or not _make(attempt.path):
        number += 1
    return attempt


def _make(directory: Path) -> bool:
    """Make a directory; return False if somebody else has made it. Other errors are left to those who write into it."""
    with contextlib.suppress(OSError):
        try:
            directory.mkdir(mode=0o755, parents=True)
        except FileExistsError:
            return False
    return True


def expand_nodes(env: Mapping[str, str]) -> list[str]:
    """Return the nodes of a batch job; empty if the node list cannot be parsed."""
    return list(expand_if_list(own_nodes(env)))


def count_gpus_per_node(run: RunDir) -> int | None:
    """Return the GPUs of a node that the train asks for; None if train.toml cannot be read."""
    try:
        gpus = read_toml(run.config).get("slurm", {}).get("gpus_per_node", 0)
    except (ConfigError, AttributeError):
        return None
    return gpus if type(gpus) is int else None


def wants_node_check(run: RunDir, rules: GuardSettings) -> bool:
    """Whether the nodes of an attempt are checked before its body; yes if train.toml cannot be read.

    Without `node_check`, the nodes of trains with GPUs are checked.
    """
    return count_gpus_per_node(run) != 0 if rules.node_check is None else rules.node_check


def choose_first_nodes(run: RunDir, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the first start in a job: without the spares, if it has any. Raises nothing."""
    try:
        table = read_toml(run.config).get("slurm", {})
        needed, spares = table.get("nodes"), table.get("spare_nodes", 0)
    except (ConfigError, AttributeError):
        return dict(env)
    allocated = list_allocated(env)
    if type(needed) is not int or not spares or len(allocated) <= needed:
        return dict(env)
    return limit_to_nodes(env, allocated[:needed], allocated=allocated)


def make_start(run: RunDir, attempt: Attempt, env: Mapping[str, str], now: datetime) -> Start:
    """Return the start record of `attempt`, from the environment of its batch job."""
    code = read_record(run)
    return Start(
        attempt=attempt.name,
        job=own_job(env),
        nodes=own_nodes(env),
        node_count=count_nodes(env),
        gpus=own_gpus(env),
        node=own_node(env),
        restarts=count_restarts(env),
        at=now,
        checkpoint=find_newest_checkpoint(run),
        main_log=read_size_bytes(run.main_log),
        code=str(code.get("hash", "")),
        commit=str(code.get("commit", "")),
    )


def write_start(run: RunDir, attempt: Attempt, start: Start) -> None:
    """Make the attempt's directories and write start.json. Raises RunDirError."""
    close_to_others(run.main_log)  # Slurm makes the log with the umask of the shell that launched the train
    for path in (attempt.path, run.attempt_logs(attempt.name), run.attempt_logs(attempt.name) / "quiet"):
        run.make(path)
    run.write(attempt.start, to_text(start))


def read_start(attempt: Attempt) -> Start | None:
    """Return the start record, or None if start.json is missing or invalid."""
    return load_record(Start, attempt.start)


def find_next_start(run: RunDir, attempt: Attempt, started: Sequence[str]) -> Start | None:
    """Return the start of the next attempt: what log and checkpoints show after it is not of `attempt`.

    `started` lists all attempts in the order of their starts.
    """
    later = started[started.index(attempt.name) + 1 :] if attempt.name in started else ()
    return next(filter(None, (read_start(run.attempt(name)) for name in later)), None)


def find_newest_checkpoint(run: RunDir) -> int:
    """Return a mark that grows with every new checkpoint; -1 without a checkpoint."""
    newest = find_newest(run)
    return newest.mark if newest else -1


def make_body_env(
    run: RunDir, attempt: Attempt, env: Mapping[str, str], *, minutes_left: int, rules: GuardSettings | None = None
) -> dict[str, str]:
    """Return the environment of the body: the environment of the job, and every variable of the trainer contract.

    With `flight_recorder` in `rules`, torch records its collectives. Variables that the job sets itself stay.
    """
    contract: dict[str, object] = {
        Env.RUN_DIR: run.path,
        Env.ATTEMPT: attempt.name,
        Env.KILL_SWITCH: path_of(run, Switch.KILL),
        Env.PAUSE_SWITCH: path_of(run, Switch.PAUSE),
        Env.SAVE_SWITCH: path_of(run, Switch.SAVE),
        Env.STOP_REQUEST: attempt.stop_request,
        Env.STACKS_REQUEST: attempt.stacks_request,
        Env.DEADLINE: attempt.deadline,
        Env.STOP_REASON: attempt.stop_reason,
        Env.FINISHED: attempt.finished,
        Env.HEARTBEAT_DIR: run.heartbeat,
        Env.STEP_TIMES_DIR: attempt.step_times,
        Env.CHECKPOINT_DIR: run.checkpoints,
        Env.MLFLOW_RUN: run.mlflow_run,
        Env.LAST_TICK: SiteDir.of(run.path.parent).last_tick,
        Env.NODE: own_node(env) or os.uname().nodename,
        "TRAIN_ATTEMPT_LOGS": run.attempt_logs(attempt.name),
        "TRAIN_MINUTES_LEFT": minutes_left,
    }
    contract[HOST_FILE] = _write_hosts(run, attempt, env)
    recorder = make_flight_recorder_env(attempt) if rules and rules.flight_recorder else {}
    contract_env = {str(name): str(value) for name, value in contract.items()}
    return {**recorder, **env, **contract_env, **make_rollback_env(run)}


def _write_hosts(run: RunDir, attempt: Attempt, env: Mapping[str, str]) -> str:
    """Write the file with the node of each rank, if this start needs one; return its path, or an empty text."""
    hosts = list_hosts(env)
    if not hosts:
        return ""
    path = attempt.path / "hosts"
    run.write(path, "\n".join(hosts) + "\n")
    return str(path)


def make_flight_recorder_env(attempt: Attempt) -> dict[str, str]:
    """Return the variables of torch's flight recorder, under their old and their new names."""
    prefix = str(attempt.path / FLIGHT_DUMP_PREFIX)
    return {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": str(FLIGHT_RECORDER_ENTRIES),
        "TORCH_FR_BUFFER_SIZE": str(FLIGHT_RECORDER_ENTRIES),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,
        "TORCH_FR_DUMP_TEMP_FILE": prefix,
    }


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
