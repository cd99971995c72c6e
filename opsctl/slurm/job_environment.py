"""What the environment of a process in a job says about the job, by the variables that Slurm sets."""

from collections.abc import Mapping
from datetime import UTC, datetime

PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_")


def own_job(env: Mapping[str, str]) -> str:
    """Return the id of the job that this process runs in; empty outside a job."""
    return env.get("SLURM_JOB_ID", "")


def own_task(env: Mapping[str, str]) -> str:
    """Return the task that this process runs in: `12_3`, `12` outside an array, empty outside a job."""
    task = env.get("SLURM_ARRAY_TASK_ID")
    return f"{env['SLURM_ARRAY_JOB_ID']}_{task}" if task else own_job(env)


def count_restarts(env: Mapping[str, str]) -> int:
    """Return how often Slurm has started the job anew. Slurm may start a job anew without counting it."""
    return int(env.get("SLURM_RESTART_COUNT") or 0)


def own_nodes(env: Mapping[str, str]) -> str:
    """Return the nodes of the job in Slurm's notation; empty if unknown."""
    return env.get("SLURM_JOB_NODELIST", "")


def count_nodes(env: Mapping[str, str]) -> int:
    return int(env.get("SLURM_JOB_NUM_NODES") or env.get("SLURM_NNODES") or 1)


def own_node(env: Mapping[str, str]) -> str:
    """Return the node that this process runs on, by Slurm's name; empty if unknown."""
    return env.get("SLURMD_NODENAME", "")


def own_gpus(env: Mapping[str, str]) -> str:
    """Return the GPUs of this node, as Slurm lists them."""
    return env.get("SLURM_JOB_GPUS") or env.get("CUDA_VISIBLE_DEVICES", "")


def own_end(env: Mapping[str, str]) -> datetime | None:
    """Return when the job reaches its time limit; None if unknown: Slurm before 23.02 does not say it (sbatch(1))."""
    end = env.get("SLURM_JOB_END_TIME", "")
    return datetime.fromtimestamp(int(end), UTC) if end.isdecimal() else None


def submit_directory(env: Mapping[str, str]) -> str:
    """Return the directory in which the job was submitted, by default the working directory."""
    return env.get("SLURM_SUBMIT_DIR") or "."


def unset_slurm_variables(env: Mapping[str, str]) -> dict[str, None]:
    """Return the Slurm variables to unset: those of a surrounding job, and defaults for commands typed by hand."""
    return dict.fromkeys({name for name in env if name.startswith(PREFIXES)} - {"SLURM_CONF"})
