"""Submit a batch script that belongs to no train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opsctl.base.errors import Unreachable
from opsctl.base.ports import Runner, TimedOut
from opsctl.slurm.commands import NO_FILTER, TIMEOUT_S
from opsctl.slurm.job_environment import unset_slurm_variables
from opsctl.slurm.slurm_errors import HINT, raise_for_error


def list_argv(path: str) -> tuple[str, ...]:
    """Return the command that submits the script at `path` and prints the job's id."""
    return ("sbatch", "--parsable", path)


def submit_script(runner: Runner, env: Mapping[str, str], script: str, *, options: Sequence[str] = ()) -> str:
    """Submit the text of a script and return the job's id. `env` is the environment of this process.

    Raises SlurmError. After Unreachable, the script may or may not have been submitted.
    """
    argv = ("sbatch", "--parsable", *options)
    try:
        out = raise_for_error(
            runner.run(argv, timeout=TIMEOUT_S, stdin=script, env=NO_FILTER["sbatch"] | unset_slurm_variables(env))
        ).out
    except TimedOut as error:
        raise Unreachable(str(error), hint=HINT) from error
    number = out.strip().partition(";")[0]
    if not number.isdigit():
        raise Unreachable(f"sbatch answered {out.strip()[:80]!r}", hint=HINT)
    return number
