"""A site with one running train that has every metric, and rows of a queue."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from opsctl.app import App, build
from opsctl.base.errors import Unreachable
from opsctl.base.findings import Severity
from opsctl.base.model import Job, JobState
from opsctl.host.system import SystemClock
from opsctl.state.events import AttemptFinalized, AttemptStarted, Submitted, Submitting
from opsctl.state.journal import Journal, actor
from opsctl.state.run_dir import RunDir
from opsctl.state.site_dir import SiteDir
from opsctl.trainer.contract import Heartbeat, Phase, to_json
from tests.support.findings import make_finding

LINE = (
    "iteration {0}/ 1000 | consumed tokens: {1} | elapsed time per iteration (s): 2.0 | "
    "lm loss: {2} | TFLOPs: 150.0 |\n"
)
INCIDENT = {
    "at": 1.7e9,
    "last": 1.7e9,
    "count": 2,
    "node": "node002",
    "check": "gpus",
    "severity": "critical",
    "evidence": "7 of 8 GPUs",
}


@dataclass
class Queue:
    """A queue that does not answer while `rows` is None."""

    rows: list[Job] | None = field(default_factory=list)

    def jobs(self) -> list[Job]:
        if self.rows is None:
            raise Unreachable("squeue did not answer")
        return self.rows


@dataclass
class MetricsSite:
    app: App
    run: RunDir
    queue: Queue
    now: datetime


def row(state: JobState, *tasks: int, **more: Any) -> Job:
    return Job(
        id="12",
        array="12",
        tasks=tasks,
        name="gpt",
        user=actor(),
        state=state,
        comment="opsctl:gpt:n1",
        **{"reason": "JobArrayTaskLimit", **more},
    )


@pytest.fixture
def metrics_site(tmp_path: Path) -> MetricsSite:
    root, now = tmp_path / "trains", datetime.now(UTC)
    site = tmp_path / "site.toml"
    site.write_text(f'root = "{root}"\ntrust_parents = true\n[alerts]\nwarning_looks = 1\n')
    run = RunDir(root / "gpt")
    run.create()
    run.config.write_text('[slurm]\ntime_limit = "60"\n')
    journal = Journal(run, SystemClock())
    journal.append(Submitting(nonce="n1", tasks=5, after=""))
    journal.append(Submitted(nonce="n1", array="12"))
    for attempt, outcome in (("12_1.0", "crashed"), ("12_2.0", "deadline"), ("12_3.0", "deadline")):
        journal.append(AttemptStarted(attempt=attempt, nodes="node001"))
        journal.append(AttemptFinalized(attempt=attempt, outcome=outcome, action="continue", why="so"))
    run.main_log.write_text("".join(LINE.format(step, step * 2048, 10 - step / 100) for step in range(1, 201)))
    heartbeat = Heartbeat(
        attempt="12_4.0", node="n", rank=0, phase=Phase.TRAIN, step=200, at=now.timestamp(), limit_s=60
    )
    (run.heartbeat / "train.json").write_text(to_json(heartbeat))
    for step in (100, 150):
        (run.checkpoints / f"global_step{step}").mkdir()
        (run.checkpoints / f"global_step{step}" / "mp_rank_00_model_states.pt").write_text("weights")
        (run.checkpoints / "latest").write_text(f"global_step{step}")
    app = build(site)
    finding = make_finding(key="hang/gpt", severity=Severity.CRITICAL, summary="no step", train="gpt", is_certain=True)
    app.alerting.ledger.record([finding])
    app.exclusions.add([("node002", "GPU fell off the bus")], hours=24)
    record = {"node": "node002", "at": now.timestamp(), "health": "faulty", "incidents": [INCIDENT]}
    (SiteDir.of(root).nodes / "node").mkdir(parents=True, exist_ok=True)
    (SiteDir.of(root).nodes / "node" / "node002.json").write_text(json.dumps(record))
    SiteDir.of(root).last_tick.write_text(f"{now.timestamp() - 60:.0f}\n")
    queue = Queue([row(JobState.RUNNING, 4, start=now, end=now + timedelta(minutes=60)), row(JobState.PENDING, 5, 6)])
    app.__dict__["slurm"] = queue  # where the cached property keeps it
    return MetricsSite(app, run, queue, now)
