"""Run drills: a train for each fault, which breaks while it trains, and a score of what opsctl did about it."""

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import dropwhile
from typing import Any

from opsctl.alerts.alert_history import AlertEvent, read_alert_history, read_deliveries
from opsctl.app import App
from opsctl.base.errors import Unreachable
from opsctl.base.nodesets import expand
from opsctl.preflight.prepare_launch import LaunchOptions, prepare_train
from opsctl.report.contents import AttemptReport
from opsctl.report.train_report import read_train
from opsctl.sandbox.fault_table import Fault, run_lines
from opsctl.settings.loader import TrainSettings, find_trainer_problems, parse
from opsctl.settings.write_toml import dump_toml
from opsctl.state.events import AttemptFinalized, AttemptStarted, Diagnosed, Event, NodesLost, StopStep
from opsctl.state.reasons import as_written
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.iteration_lines import last_iteration

AT_ONCE = 3
MIN_STEPS = 15
"""Steps before a fault: opsctl then knows the rhythm of the train, and there is a checkpoint to go back to."""
POLL_S = 0.5
SIGNS = (AttemptFinalized, Diagnosed, NodesLost, StopStep)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What opsctl did about a fault. None and empty: nothing, or not known."""

    fault: str
    noticed_s: float | None
    """From the fault to the first of SIGNS in the journal, or to the first alert."""
    cause: str
    action: str
    alerts: tuple[str, ...]
    """The watchdogs that raised an alert, and the channels that delivered it."""
    channels: tuple[str, ...]
    steps_lost: int | None
    """Steps that were done twice."""
    back_s: float | None
    """From the fault to the first step after it."""
    wrong: tuple[str, ...]
    """The demands of the table that are not met."""


@dataclass(kw_only=True)
class Drills:
    """Drills of the train with the TRAIN.toml `fields`. Each fault has a train of its own, named after the fault."""

    app: App
    fields: Mapping[str, Any]
    show: Callable[[str], None]
    scores: dict[str, Score] = field(default_factory=dict)

    def run(self, faults: Sequence[Fault]) -> list[Score]:
        """Run the drills of all faults, several at once; what all trains share breaks afterwards, one at a time."""
        queued = sorted(faults, key=lambda fault: fault.touches == "site")
        running: list[Iterator[None]] = []
        while queued or running:
            while queued and len(running) < (1 if queued[0].touches == "site" else AT_ONCE):
                running.append(self._drill(queued.pop(0)))
            running = [drill for drill in running if next(drill, True) is None]
            self.app.clock.sleep(POLL_S)
        return [self.scores[fault.name] for fault in faults]

    def _drill(self, fault: Fault) -> Iterator[None]:
        """Run the drill of one fault; yield while there is nothing to do but wait."""
        name = f"{self.fields['name']}-{fault.name}"
        fields = {**self.fields, "name": name, "slurm": {**self.fields["slurm"], **fault.slurm}}
        train = parse(TrainSettings, fields, name, extra=find_trainer_problems(fields))
        launch = prepare_train(self.app, train, dump_toml(fields), LaunchOptions(), where=name, warn=self.show)
        launch.carry_out()
        try:
            while (newest := last_iteration(launch.run.main_log)) is None or newest.step < MIN_STEPS:
                yield
            yield from self._break(fault, launch.run)
        finally:
            with contextlib.suppress(Unreachable):
                launch.arrays.cancel(as_written("the drill is over"))

    def _break(self, fault: Fault, run: RunDir) -> Iterator[None]:
        """Break the train, and score what follows until all demands are met or the time of the fault is over."""
        self.show(f"{fault.name}: {fault.says}")
        journal, now, alerts = self.app.journal(run), self.app.clock.now, self.app.site_dir.alerts
        events = journal.events()
        begun = [event for event in events if isinstance(event, AttemptStarted)][-1]
        run_here = partial(run_lines, variables=self._name_variables(run, begun), runner=self.app.engine_runner)
        with contextlib.ExitStack() as broken:
            broken.callback(run_here, fault.undo)
            run_here(fault.inject)
            since = max(now(), begun.when + timedelta(seconds=fault.begins_s))
            newest, back_s = last_iteration(run.main_log), None
            while True:
                yield
                passed_s = (now() - since).total_seconds()
                after = [event for event in journal.events() if event.number > events[-1].number]
                reported = read_train(run, journal.events(), now()).report.attempts
                attempts = list(dropwhile(lambda attempt: attempt.attempt != begun.attempt, reported))
                step = find_resumed_step(attempts) if fault.causes else attempts[0].last_step
                if back_s is None and step and newest and (fault.causes or step > newest.step):
                    back_s = max(0.0, passed_s)
                score = judge(
                    fault,
                    since,
                    events=after,
                    alerts=[alert for alert in read_alert_history(alerts, run.name)[0] if alert.at >= since],
                    channels=read_deliveries(alerts, run.name, since),
                    attempts=attempts,
                    back_s=back_s,
                )
                is_noticed = fault.until_noticed and {"noticed", "cause", "action"}.isdisjoint(score.wrong)
                if is_noticed or 0 < fault.lasts_s <= passed_s:
                    broken.close()
                if passed_s >= fault.limit_s or (not score.wrong and passed_s >= fault.lasts_s):
                    break
        self.scores[fault.name] = score
        self.show(f"{fault.name}: {'wrong: ' if score.wrong else 'right'}{', '.join(score.wrong)}")

    def _name_variables(self, run: RunDir, begun: AttemptStarted) -> dict[str, str]:
        """Return the variables of faults.sh."""
        slurm = self.fields["slurm"]
        return {
            "TRAIN": run.name,
            "RUN": str(run.path),
            "ATTEMPT": begun.attempt,
            "JOB": self.app.arrays(run).check().active[0].id,
            "NODE": expand(begun.nodes)[-1],
            "RANK": str(slurm["nodes"] * slurm.get("processes_per_node", 1) - 1),
            "OPSCTL": shlex.join(self.app.program),
            "SANDBOX": self.app.site.sandbox,
        }


def find_resumed_step(attempts: Sequence[AttemptReport]) -> int | None:
    """Return the first step after the first of the attempts; None without one."""
    return next((int(later.first_step) for later in attempts[1:] if later.first_step is not None), None)


def judge(
    fault: Fault,
    since: datetime,
    *,
    events: Sequence[Event],
    alerts: Sequence[AlertEvent],
    channels: Sequence[str],
    attempts: Sequence[AttemptReport],
    back_s: float | None,
) -> Score:
    """Return the score so far: what is still to come counts as wrong.

    Events and alerts are those since the fault; `attempts` begin with the one that ran then. Pure.
    """
    ends = [event for event in events if isinstance(event, AttemptFinalized)]
    raised = [alert for alert in alerts if alert.is_worse]
    times = [event.when for event in events if isinstance(event, SIGNS)] + [alert.at for alert in raised]
    watchdogs = tuple(dict.fromkeys(alert.key.partition("/")[0] for alert in raised))
    # The outcome is the cause of an end that needs no diagnosis.
    action, causes = (ends[-1].action, [ends[-1].outcome]) if ends else ("", [])
    for event in events:
        if ends and isinstance(event, Diagnosed) and event.attempt == ends[-1].attempt:
            causes = [event.cause, event.cause_kind]
    resumed = find_resumed_step(attempts)
    repeated = None if resumed is None else max(0, int(attempts[0].last_step or 0) - resumed + 1)
    demands = {
        "noticed": bool(times) or not (fault.causes or fault.alerts),
        "cause": not fault.causes or not set(causes).isdisjoint(fault.causes),
        "action": action in fault.action,
        "alert": not fault.alerts or (not set(watchdogs).isdisjoint(fault.alerts) and bool(channels)),
        "no other alert": set(watchdogs) <= set(fault.alerts),
        "training after": back_s is not None or not fault.resumes,
    }
    return Score(
        fault=fault.name,
        noticed_s=max(0.0, (min(times) - since).total_seconds()) if times else None,
        cause=next(filter(None, (*causes, *watchdogs)), ""),
        action=action,
        alerts=watchdogs,
        channels=tuple(dict.fromkeys(channels)),
        steps_lost=repeated if ends else 0,
        back_s=back_s if fault.resumes else None,
        wrong=tuple(name for name, is_met in demands.items() if not is_met),
    )
