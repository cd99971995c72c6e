"""What an attempt writes down when it begins: where it runs, and what there was before it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from opsctl.errors import InputError
from opsctl.nodesets import expand
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.state.site_dir import SiteDir
from opsctl.state.switches import Switch, path_of
from opsctl.trainer.contract import Env
from opsctl.trainer.manifest import find_newest_complete


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """start.json"""

    attempt: str
    job: str
    """Slurm's own number, which an array task has too."""
    nodes: str
    node_count: int
    gpus: str
    """Those of the first node, as Slurm hands them out."""
    node: str
    """Where the guard runs."""
    at: datetime
    checkpoint: int
    """A mark that is larger as soon as there is a new checkpoint."""
    main_log: int = 0
    """How long main_log was: what comes after it is of this attempt."""


def attempt_name(env: Mapping[str, str]) -> str:
    """`<array>_<task>.<restart>`, or `<job>.<restart>`. Raises InputError outside a job."""
    job = env.get("SLURM_JOB_ID")
    if not job:
        raise InputError("this is not a batch job: SLURM_JOB_ID is not set", hint="opsctl launch submits trains")
    if task := env.get("SLURM_ARRAY_TASK_ID"):
        job = f"{env['SLURM_ARRAY_JOB_ID']}_{task}"
    return f"{job}.{env.get('SLURM_RESTART_COUNT') or 0}"


def expand_nodes(env: Mapping[str, str]) -> list[str]:
    """The nodes of a batch job, as far as they can be understood."""
    try:
        return expand(env.get("SLURM_JOB_NODELIST", ""))
    except InputError:
        return []


def make_start(run: RunDir, attempt: Attempt, env: Mapping[str, str], now: datetime) -> Start:
    return Start(
        attempt=attempt.name,
        job=env["SLURM_JOB_ID"],
        nodes=env.get("SLURM_JOB_NODELIST", ""),
        node_count=int(env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or 1),
        gpus=env.get("SLURM_JOB_GPUS") or env.get("CUDA_VISIBLE_DEVICES", ""),
        node=env.get("SLURMD_NODENAME", ""),
        at=now,
        checkpoint=find_newest_checkpoint(run),
        main_log=_size(run.main_log),
    )


def write_start(run: RunDir, attempt: Attempt, start: Start) -> None:
    """Make the attempt's directory and start.json. Raises RunDirError.

    A controller that was killed uses ids again, so there may be an attempt of this name: its directory is set aside.
    """
    if attempt.start.exists():
        attempt.path.rename(attempt.path.with_name(f"{attempt.name}.before-{start.at:%Y%m%dT%H%M%S}"))
    for path in (attempt.path, run.attempt_logs(attempt.name)):
        run.make(path)
    run.write(attempt.start, json.dumps(asdict(start), default=str, indent=1) + "\n")


def read_start(attempt: Attempt) -> Start | None:
    try:
        given = json.loads(attempt.start.read_text())
        return Start(**{**given, "at": datetime.fromisoformat(given["at"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_newest_checkpoint(run: RunDir) -> int:
    """The step of the newest complete checkpoint; for a foreign trainer, when it last wrote into the directory.

    Compared with what it was before, on the same file system, so that no clock is trusted.
    """
    if run.trainer_config.exists():
        newest = find_newest_complete(run.checkpoints)
        return newest.step if newest else -1
    return max((_changed(entry) for entry in run.checkpoints.glob("[!.]*")), default=-1)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1


def make_body_env(run: RunDir, attempt: Attempt, env: Mapping[str, str], *, minutes_left: int) -> dict[str, str]:
    """The environment of the body: that of the job, and all that the contract with trainers names."""
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
        Env.HEARTBEAT_DIR: run.heartbeat,
        Env.CHECKPOINT_DIR: run.checkpoints,
        Env.LAST_TICK: SiteDir.of(run.path.parent).last_tick,
        Env.NODE: env.get("SLURMD_NODENAME") or os.uname().nodename,
        "TRAIN_ATTEMPT_LOGS": run.attempt_logs(attempt.name),
        "TRAIN_MINUTES_LEFT": minutes_left,
    }
    return {**env, **{str(name): str(value) for name, value in contract.items()}}
