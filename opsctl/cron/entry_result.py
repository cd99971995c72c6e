"""What became of an entry, from how its program ended."""

from __future__ import annotations

import re
from dataclasses import replace

from opsctl.cron.run_history import Ran, Result
from opsctl.host.system import Bounded

NOT_SUBMITTED = re.compile(rb"Unable to contact slurm controller")
JOB = re.compile(rb"(\d+)(;\S+)?\s*")


def judged(done: Bounded, start: Ran, timeout: float) -> Ran:
    if done.code is None:
        return replace(start, result=Result.TIMEOUT, detail=f"ended after {timeout:.3g} s")
    if done.code == 0:
        return replace(start, result=Result.OK)
    detail = f"exit {done.code}" if done.code > 0 else f"signal {-done.code}"
    return replace(start, result=Result.FAILED, detail=detail)


def submitted(done: Bounded, before: Ran, start: Ran) -> Ran:
    if done.code == 0 and (match := JOB.fullmatch(done.output)):
        return replace(start, result=Result.OK, detail=f"job {match[1].decode()}")
    if done.code and NOT_SUBMITTED.search(done.output):
        # Still due: for the next tick.
        return replace(start, since=before.since, result=Result.FAILED, detail="Slurm did not answer; tried again")
    if done.code is None:
        return replace(start, result=Result.UNKNOWN, detail="sbatch did not end; it may have been submitted")
    return replace(start, result=Result.FAILED, detail=f"sbatch refused it: exit {done.code}")
