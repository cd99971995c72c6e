"""Waits behind other jobs, compared with a limit or with the train's own waits."""

from __future__ import annotations

from datetime import timedelta

from opsctl.base.findings import Level
from tests.support.watch_context import Bench, waiting


def test_long_wait_behind_other_jobs_is_a_warning(bench: Bench) -> None:
    bench.jobs = (waiting("Priority"),)
    assert bench.judge("slurm_status").level is Level.OK
    assert bench.judge("slurm_status", after=timedelta(hours=23)).level is Level.OK
    finding = bench.judge("slurm_status", after=timedelta(hours=2))
    assert finding.level is Level.WARNING
    assert "for 1d 1h (limit 1d); Slurm estimates no start" in finding.summary


def test_wait_is_compared_with_the_trains_own_waits(bench: Bench) -> None:
    bench.jobs = (waiting("Resources"),)
    bench.judge("slurm_status")
    bench.start_task()
    bench.judge("slurm_status", after=timedelta(hours=20))
    bench.jobs = (waiting("Resources"),)
    bench.judge("slurm_status")
    assert bench.judge("slurm_status", after=timedelta(hours=59)).level is Level.OK
    assert bench.judge("slurm_status", after=timedelta(hours=2)).level is Level.WARNING


def test_waiting_hours_override_the_history(bench: Bench) -> None:
    bench.site = {"watch": {"waiting_hours": 2.0}}
    bench.jobs = (waiting("Resources"),)
    bench.judge("slurm_status")
    assert bench.judge("slurm_status", after=timedelta(hours=3)).level is Level.WARNING
