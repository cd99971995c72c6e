"""Derive an entry's result from the exit of its program."""

from __future__ import annotations

import re
from dataclasses import replace

from opsctl.cron.run_history import EntryResult, EntryRun
from opsctl.host.system import Bounded

NOT_SUBMITTED = re.compile(rb"Unable to contact slurm controller")
JOB = re.compile(rb"(\d+)(;\S+)?\s*")


def judge_result(done: Bounded, start: EntryRun, timeout: float) -> EntryRun:
    if done.code is None:
        return replace(start, result=EntryResult.TIMEOUT, detail=f"ended after {timeout:.3g} s")
    if done.code == 0:
        return replace(start, result=EntryResult.OK)
    detail = f"exit {done.code}" if done.code > 0 else f"signal {-done.code}"
    return replace(start, result=EntryResult.FAILED, detail=detail)


def judge_submission(done: Bounded, before: EntryRun, start: EntryRun) -> EntryRun:
    if done.code == 0 and (match := JOB.fullmatch(done.output)):
        return replace(start, result=EntryResult.OK, detail=f"job {match[1].decode()}")
    if done.code and NOT_SUBMITTED.search(done.output):
        # The entry stays due for the next tick.
        return replace(start, since=before.since, result=EntryResult.FAILED, detail="Slurm did not answer; tried again")
    if done.code is None:
        return replace(start, result=EntryResult.UNKNOWN, detail="sbatch did not end; it may have been submitted")
    return replace(start, result=EntryResult.FAILED, detail=f"sbatch refused it: exit {done.code}")
