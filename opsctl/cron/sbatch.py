"""Submitting one batch script that is not a train's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opsctl.errors import Unreachable
from opsctl.ports import Runner, TimedOut
from opsctl.scheduler.slurm import NO_FILTER, TIMEOUT
from opsctl.scheduler.slurm_errors import HINT, raise_for_error


def unset_slurm_variables(env: Mapping[str, str]) -> dict[str, None]:
    """What the job that we may be in says of itself, and what its user set for commands typed by hand: nothing that a
    script of its own should inherit."""
    ours = {name for name in env if name.startswith(("SLURM_", "SLURMD_", "SBATCH_", "SRUN_"))} - {"SLURM_CONF"}
    return dict.fromkeys(ours)


def sbatch(runner: Runner, env: Mapping[str, str], script: str, *, options: Sequence[str] = ()) -> str:
    """Submit the text of a script; the job's id. `env` is that of this process.

    Raises SchedulerError, or Unreachable, and then it is unknown whether it was submitted.
    """
    argv = ("sbatch", "--parsable", *options)
    try:
        out = raise_for_error(
            runner.run(argv, timeout=TIMEOUT, stdin=script, env=NO_FILTER["sbatch"] | unset_slurm_variables(env))
        ).out
    except TimedOut as error:
        raise Unreachable(str(error), hint=HINT) from error
    number = out.strip().partition(";")[0]
    if not number.isdigit():
        raise Unreachable(f"sbatch answered {out.strip()[:80]!r}", hint=HINT)
    return number
