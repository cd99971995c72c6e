"""The guard of one attempt, put together from the settings of the site and of the train."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from opsctl.actions.owner_actions import keep_cron_alive
from opsctl.app import App
from opsctl.base.errors import ConfigError, OpsctlError
from opsctl.guard.attempt_record import check_batch_job, choose_first_nodes
from opsctl.guard.supervisor import GUARD_SIGNALS, Supervisor
from opsctl.host.system import replace_process
from opsctl.settings.loader import GuardSettings, parse, read_toml
from opsctl.slurm.job_environment import ALLOCATED, list_allocated, own_job
from opsctl.state.events import AttemptFinalized, Event, ExclusionDecided
from opsctl.state.run_dir import RunDir, check_trusted

if TYPE_CHECKING:
    from opsctl.guard.node_care import NodeCare

log = logging.getLogger("opsctl.guard")
NOTIFY_TIMEOUT_S = 20.0
"""Time limit of sending alerts. The next watch cycle sends the rest."""


def run_guard(app: App, run_dir: Path) -> int:
    """Run the body of the train in `run_dir` under a guard; return the exit code of the body.

    If the guard fails before the body runs, this process becomes the wrapper without a guard. Raises InputError outside
    a batch job.
    """
    train, env = RunDir(run_dir.absolute()), dict(os.environ)
    check_batch_job(env)
    if not env.get(ALLOCATED):  # otherwise an earlier guard has chosen the nodes
        env = choose_first_nodes(train, env)
    supervisor = None
    try:
        supervisor = Supervisor(
            arrays=app.arrays(train),
            rules=rules_of(train),
            runner=app.runner,
            env=env,
            check_trusted=lambda: check_trusted((train.body,), root=app.root if app.site.trust_parents else None),
            revive_cron=lambda: keep_cron_alive(app),
            make_care=lambda: care_of(app, env),
            notify=lambda: notify(app, train),
        )
        code = supervisor.supervise()
        if supervisor.next_env is not None:
            # From here on, signals wait for the next guard. This guard has taken the earlier ones.
            signal.pthread_sigmask(signal.SIG_BLOCK, GUARD_SIGNALS)
            if supervisor.may_restart:
                argv = [sys.executable, "-P", "-m", "opsctl.start_guard", str(train.path)]
                replace_process(argv, env=supervisor.next_env)
        return code
    except Exception:
        if supervisor and supervisor.body:
            raise
        log.exception("the guard cannot start; the wrapper goes on without the guard")
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # blocked after a restart in place
        replace_process(["bash", str(train.wrapper)], env={"OPSCTL_GUARD_FAILED": "yes"})
        raise


def care_of(app: App, env: Mapping[str, str]) -> NodeCare:
    """Return the node care that reaches the nodes of this job through the job."""
    from opsctl.guard.node_care import NodeCare  # noqa: PLC0415 (slow import: after the body has begun)

    return NodeCare.of(app, dict.fromkeys(list_allocated(env), own_job(env)))


def _count_waiting(app: App, train: RunDir) -> int | None:
    """Return the number of queued tasks, which an alert names; None if Slurm does not answer."""
    try:
        return app.arrays(train).check().waiting_tasks
    except OpsctlError:
        return None


def notify(app: App, train: RunDir) -> None:
    """Send alerts of failures at once. Raises OpsctlError.

    Does nothing if the alert ledger belongs to another user, whose watch sends the alerts.
    """
    events = app.journal(train).events()
    if not any(map(_may_be_failure, events)):
        return
    from opsctl.watchdogs.failures import failures  # noqa: PLC0415 (slow import: all watchdogs)

    findings = failures(train, events, app.clock.now(), waiting=_count_waiting(app, train))
    if all(finding.is_ok for finding in findings):
        return
    from opsctl.alerts import dispatch  # noqa: PLC0415 (slow import: templates)
    from opsctl.host.isolation import Failed, Isolation  # noqa: PLC0415 (as above)
    from opsctl.launch.tracker_runs import add_links  # noqa: PLC0415 (as above)

    if not app.alerting.ledger.is_own:
        return
    linked = add_links(findings, train, events)

    def record() -> None:
        app.alerting.ledger.record(linked)
        dispatch.send_alerts(app.alerting)

    failed = Isolation[str, None](app.clock, NOTIFY_TIMEOUT_S).run({"notify": record})["notify"]
    if isinstance(failed, Failed):
        log.warning("sending alerts: %s", failed.why)


def _may_be_failure(event: Event) -> bool:
    """Whether the failures that `watchdogs/failures.py` reports could follow from the event."""
    is_hold = isinstance(event, AttemptFinalized) and event.action == "hold-queued"
    return is_hold or isinstance(event, ExclusionDecided)


def rules_of(train: RunDir) -> GuardSettings:
    """Return the [guard] table of train.toml; the defaults if the file cannot be read."""
    try:
        return parse(GuardSettings, read_toml(train.config).get("guard", {}), str(train.config))
    except ConfigError as error:
        log.warning("%s; using the defaults of [guard]", error.message)
        return GuardSettings()
