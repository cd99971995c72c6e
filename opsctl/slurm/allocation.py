"""Hold idle nodes in one job of the caller, so that no other job takes them between several commands."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from opsctl.base.errors import MissingProgram
from opsctl.base.nodesets import fold
from opsctl.base.ports import Runner, TimedOut
from opsctl.slurm.steps import REMOVED_ENV

GRANTED = re.compile(r"Granted job allocation (\d+)")
ANSWER_S = 30.0
"""Time limit for Slurm's commands, beyond the wait for the start of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Holds nodes in one job that runs nothing. Needs the right to submit jobs, and nothing else."""

    runner: Runner
    minutes: int
    """Time limit of the job, which also ends the job of a command that was killed."""
    partition: str = ""
    account: str = ""
    wait_s: float = 10
    """Time limit for the start of the job."""

    @contextmanager
    def hold(self, nodes: Sequence[str]) -> Iterator[dict[str, str]]:
        """Yield the job by node; no node if Slurm does not grant all nodes at once."""
        if not nodes:
            yield {}
            return
        name = f"opsctl-node-{secrets.token_hex(4)}"
        try:
            job = self._submit(nodes, name)
            yield dict.fromkeys(nodes, job) if job else {}
        finally:
            # By its name: after a time-out the id is not known.
            with suppress(MissingProgram, TimedOut, OSError):
                self.runner.run(("scancel", f"--name={name}"), timeout=ANSWER_S, env=REMOVED_ENV)

    def _submit(self, nodes: Sequence[str], name: str) -> str:
        """Return the id of the job; empty without a job."""
        options = [f"--immediate={max(1, math.ceil(self.wait_s))}", "--exclusive", f"--job-name={name}"]
        options += [f"--partition={self.partition}"] if self.partition else []
        options += [f"--account={self.account}"] if self.account else []
        options += [f"--time={self.minutes}", f"--nodelist={fold(nodes)}", f"--nodes={len(nodes)}", "--chdir=/"]
        try:
            done = self.runner.run(("salloc", "--no-shell", *options), timeout=self.wait_s + ANSWER_S, env=REMOVED_ENV)
        except (MissingProgram, TimedOut, OSError):
            return ""
        granted = GRANTED.search(done.err)
        return granted[1] if granted and done.code == 0 else ""
