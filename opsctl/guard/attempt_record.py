"""The record of an attempt's start (start.json), and the environment of its body."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from opsctl.base.errors import InputError
from opsctl.base.nodesets import expand
from opsctl.guard.newest_checkpoint import find_newest
from opsctl.guard.rollback_arguments import make_rollback_env
from opsctl.launch.code_freeze import read_record
from opsctl.settings.loader import GuardSettings
from opsctl.state.files import MAX_RECORD_BYTES, close_to_others, read_json, read_size_bytes
from opsctl.state.records import decode, to_text
from opsctl.state.run_dir import FLIGHT_DUMP_PREFIX, Attempt, RunDir
from opsctl.state.site_dir import SiteDir
from opsctl.state.switches import Switch, path_of
from opsctl.trainer.contract import Env

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
    commit: str = ""
    """Commit of the frozen code, `+N` for N changed files; empty without `freeze = "git"`."""


def attempt_name(env: Mapping[str, str]) -> str:
    """Return `<array>_<task>.<restart>`, or `<job>.<restart>`. Raises InputError outside a job."""
    job = env.get("SLURM_JOB_ID")
    if not job:
        raise InputError("this is not a batch job: SLURM_JOB_ID is not set", hint="opsctl launch submits trains")
    if task := env.get("SLURM_ARRAY_TASK_ID"):
        job = f"{env['SLURM_ARRAY_JOB_ID']}_{task}"
    return f"{job}.{env.get('SLURM_RESTART_COUNT') or 0}"


def expand_nodes(env: Mapping[str, str]) -> list[str]:
    """Return the nodes of a batch job; empty if the node list cannot be parsed."""
    try:
        return expand(env.get("SLURM_JOB_NODELIST", ""))
    except InputError:
        return []


def make_start(run: RunDir, attempt: Attempt, env: Mapping[str, str], now: datetime) -> Start:
    """Return the start record of `attempt`, from the environment of its batch job."""
    code = read_record(run)
    return Start(
        attempt=attempt.name,
        job=env["SLURM_JOB_ID"],
        nodes=env.get("SLURM_JOB_NODELIST", ""),
        node_count=int(env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or 1),
        gpus=env.get("SLURM_JOB_GPUS") or env.get("CUDA_VISIBLE_DEVICES", ""),
        node=env.get("SLURMD_NODENAME", ""),
        at=now,
        checkpoint=find_newest_checkpoint(run),
        main_log=read_size_bytes(run.main_log),
        code=str(code.get("hash", "")),
        commit=str(code.get("commit", "")),
    )


def write_start(run: RunDir, attempt: Attempt, start: Start) -> None:
    """Make the attempt's directories and write start.json. Raises RunDirError.

    A killed controller reuses job ids, so an earlier attempt may have this name. Its directory is renamed.
    """
    if attempt.start.exists():
        attempt.path.rename(attempt.path.with_name(f"{attempt.name}.before-{start.at:%Y%m%dT%H%M%S}"))
    close_to_others(run.main_log)  # Slurm makes the log with the umask of the shell that launched the train
    for path in (attempt.path, run.attempt_logs(attempt.name)):
        run.make(path)
    run.write(attempt.start, to_text(start))


def read_start(attempt: Attempt) -> Start | None:
    """Return the start record, or None if start.json is missing or invalid."""
    try:
        return decode(Start, read_json(attempt.start, MAX_RECORD_BYTES))
    except (OSError, ValueError):
        return None


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
    contract = {
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
        Env.NODE: env.get("SLURMD_NODENAME") or os.uname().nodename,
        "TRAIN_ATTEMPT_LOGS": run.attempt_logs(attempt.name),
        "TRAIN_MINUTES_LEFT": minutes_left,
    }
    recorder = make_flight_recorder_env(attempt) if rules and rules.flight_recorder else {}
    contract_env = {str(name): str(value) for name, value in contract.items()}
    return {**recorder, **env, **contract_env, **make_rollback_env(run)}


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
