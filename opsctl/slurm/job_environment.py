"""What the environment of a process in a job says about the job, by the variables that Slurm sets."""

from __future__ import annotations

from collections.abc import Mapping

PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_")


def own_job(env: Mapping[str, str]) -> str:
    """Return the id of the job that this process runs in; empty outside a job."""
    return env.get("SLURM_JOB_ID", "")


def submit_directory(env: Mapping[str, str]) -> str:
    """Return the directory in which the job was submitted, by default the working directory."""
    return env.get("SLURM_SUBMIT_DIR") or "."


def unset_slurm_variables(env: Mapping[str, str]) -> dict[str, None]:
    """Return the Slurm variables to unset: those of a surrounding job, and defaults for commands typed by hand."""
    return dict.fromkeys({name for name in env if name.startswith(PREFIXES)} - {"SLURM_CONF"})
