"""Run drills: a train for each fault, which breaks while it trains, and a score of what opsctl did about it."""

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, dropwhile
from typing import Any

from opsctl.actions.prepare_launch import LaunchOptions, prepare_train
from opsctl.alerts.alert_history import AlertEvent, read_alert_history, read_deliveries
from opsctl.app import App
from opsctl.base.errors import OpsctlError, Unreachable
from opsctl.base.nodesets import expand
from opsctl.base.units import format_duration
from opsctl.guard.end_record import Action, Outcome
from opsctl.report.contents import AttemptReport
from opsctl.report.train_report import read_train
from opsctl.sandbox.faults import Fault, run_lines
from opsctl.settings.alert_channels import EmailTable
from opsctl.settings.loader import TrainSettings, find_trainer_problems, parse
from opsctl.settings.write_toml import dump_toml
from opsctl.state.drill_score import Drilled
from opsctl.state.events import AttemptFinalized, AttemptStarted, Diagnosed, Event, NodesLost, StopStep
from opsctl.state.reasons import as_written
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.iteration_lines import last_iteration

AT_ONCE = 3
SCORE_FIELDS = [name for name in Drilled.__dataclass_fields__ if name not in Event.__dataclass_fields__]
STOPS = frozenset({Action.HOLD_QUEUED, Action.CANCEL_QUEUED})
POLL_S = 0.5
SIGNS = (AttemptFinalized, Diagnosed, NodesLost, StopStep)


@dataclass(kw_only=True)
class Drills:
    """Drills of the train with the TRAIN.toml `fields`. Each fault has a train of its own, named after the fault."""

    app: App
    fields: Mapping[str, Any]
    patience: timedelta
    """How long a train may take until it has done the steps before its fault."""
    show: Callable[[str], None]
    scores: dict[str, Drilled] = field(default_factory=dict)

    def run(self, faults: Sequence[Fault]) -> list[Drilled]:
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
        """Run the drill of one fault, and journal its score; yield while there is nothing to do but wait."""
        name = f"{self.fields['name']}-{fault.name}"
        changed = {table: {**self.fields.get(table, {}), **values} for table, values in fault.train.items()}
        fields = {**self.fields, "name": name, **changed}
        train = parse(TrainSettings, fields, name, extra=find_trainer_problems(fields))
        launch = prepare_train(self.app, train, dump_toml(fields), LaunchOptions(), where=name, warn=self.show)
        launch.carry_out()
        journal = self.app.journal(launch.run)
        self.scores[fault.name] = Drilled(fault=fault.name)
        try:
            yield from self._wait_for_steps(fault, launch.run)
            yield from self._break(fault, launch.run, ranks=train.slurm.nodes * train.slurm.processes_per_node)
        except OpsctlError as error:
            self.scores[fault.name] = Drilled(fault=fault.name, wrong=("not drilled",), why=error.message)
        finally:
            score = self.scores[fault.name]
            journal.append(score)
            with contextlib.suppress(Unreachable):
                launch.arrays.cancel(as_written("the drill is over"))
        self.show(f"{name}: {', '.join(score.wrong) or 'right'}{score.why and f': {score.why}'}")

    def _wait_for_steps(self, fault: Fault, run: RunDir) -> Iterator[None]:
        """Wait until the train has done the steps before the fault. Raises OpsctlError if the train ends or is late."""
        journal, clock = self.app.journal(run), self.app.clock
        begun, step = clock.monotonic(), 0
        while step < fault.steps:
            yield
            newest = last_iteration(run.main_log)
            step = newest.step if newest else 0
            action, causes = find_end(journal.events())
            if action in STOPS:
                raise OpsctlError(f"the train ended by itself, before step {fault.steps}: {causes[0]}, {action}")
            if clock.monotonic() - begun > self.patience.total_seconds():
                state = f"step {step} of {fault.steps}" if step else "no step, or none that opsctl finds in its log"
                raise OpsctlError(f"{state} after {format_duration(self.patience)}; see opsctl status {run.name}")

    def _break(self, fault: Fault, run: RunDir, *, ranks: int) -> Iterator[None]:
        """Break the train, and score what follows until all demands are met or the time of the fault is over."""
        self.show(f"{run.name}: {fault.says}")
        journal, now, alerts = self.app.journal(run), self.app.clock.now, self.app.site_dir.alerts
        whose = "" if fault.only_named else run.name  # of the site too, where nothing else is drilled
        events = journal.events()
        begun = [event for event in events if isinstance(event, AttemptStarted)][-1]
        limit_s = fault.limit_s + 2 * (now() - begun.when).total_seconds()
        run_here = partial(run_lines, variables=self._name_variables(run, begun, ranks), runner=self.app.engine_runner)
        with contextlib.ExitStack() as broken:
            broken.callback(run_here, fault.undo)
            run_here(fault.inject)
            since = max(now(), begun.when + timedelta(seconds=fault.begins_s))
            newest, back_s = last_iteration(run.main_log), None
            while True:
                yield
                passed_s = (now() - since).total_seconds()
                after = [event for event in journal.events() if event.number > events[-1].number]
                report = read_train(run, journal.events(), now()).report
                attempts = list(dropwhile(lambda attempt: attempt.attempt != begun.attempt, report.attempts))
                step = find_resumed_step(attempts) if fault.causes else attempts[0].last_step
                if back_s is None and step and newest and (fault.causes or step > newest.step):
                    back_s = max(0.0, passed_s)
                score = judge(
                    fault,
                    since,
                    events=after,
                    alerts=[alert for alert in read_alert_history(alerts, whose)[0] if alert.at >= since],
                    channels=read_deliveries(alerts, run.name, since),
                    attempts=attempts,
                    back_s=back_s,
                )
                is_noticed = fault.until_noticed and {"noticed", "cause", "action"}.isdisjoint(score.wrong)
                if is_noticed or 0 < fault.lasts_s <= passed_s:
                    broken.close()
                if score.cause == Outcome.FINISHED:
                    raise OpsctlError("the train finished before it could show more; give it more steps")
                is_over = "action" in score.wrong and score.action in STOPS  # no other action can follow
                if is_over or passed_s >= limit_s or (not score.wrong and passed_s >= fault.lasts_s):
                    break
        tables = [self.app.site.alerts.channels.get(channel) for channel in score.channels]
        to_whom = tuple(dict.fromkeys(chain(*(table.to for table in tables if isinstance(table, EmailTable)))))
        lost_s = {cause.value: seconds for cause, seconds in report.losses}
        self.scores[fault.name] = replace(score, recipients=to_whom, save_s=report.save_s, lost_s=lost_s)

    def _name_variables(self, run: RunDir, begun: AttemptStarted, ranks: int) -> dict[str, str]:
        """Return the variables of faults.sh."""
        return {
            "TRAIN": run.name,
            "RUN": str(run.path),
            "ATTEMPT": begun.attempt,
            "JOB": self.app.arrays(run).check().active[0].id,
            "NODE": expand(begun.nodes)[-1],
            "RANK": str(ranks - 1),
            "OPSCTL": shlex.join(self.app.program),
            "SANDBOX": self.app.site.sandbox,
        }


def find_end(events: Sequence[Event]) -> tuple[str, list[str]]:
    """Return what follows from the last end of an attempt, and its cause: with its class, or the outcome alone."""
    ends = [event for event in events if isinstance(event, AttemptFinalized)]
    action, causes = (ends[-1].action, [ends[-1].outcome]) if ends else ("", [])
    for event in events:
        if ends and isinstance(event, Diagnosed) and event.attempt == ends[-1].attempt:
            causes = [event.cause, event.cause_kind]
    return action, causes


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
) -> Drilled:
    """Return the score so far: what is still to come counts as wrong.

    Events and alerts are those since the fault; `attempts` begin with the one that ran then. Pure.
    """
    raised = [alert for alert in alerts if alert.is_worse]
    times = [event.when for event in events if isinstance(event, SIGNS)] + [alert.at for alert in raised]
    watchdogs = tuple(dict.fromkeys(alert.key.partition("/")[0] for alert in raised))
    action, causes = find_end(events)
    resumed = find_resumed_step(attempts)
    if back_s is not None and not set(causes).isdisjoint(fault.repaired):
        damage = tuple({"checkpoint"}.intersection(watchdogs))  # people may be told what was set aside
        fault = replace(fault, causes=fault.repaired, action=(Action.CONTINUE,), alerts=damage, resumes=True)
    repeated = None if resumed is None else max(0, int(attempts[0].last_step or 0) - resumed + 1)
    demands = {
        "noticed": bool(times) or not (fault.causes or fault.alerts),
        "cause": not fault.causes or not set(causes).isdisjoint(fault.causes),
        "action": action in fault.action,
        "alert": not fault.alerts or (not set(watchdogs).isdisjoint(fault.alerts) and bool(channels)),
        "no other alert": set(watchdogs) <= set(fault.alerts),
        "training after": back_s is not None or not fault.resumes,
    }
    return Drilled(
        fault=fault.name,
        noticed_s=max(0.0, (min(times) - since).total_seconds()) if times else None,
        cause=next(filter(None, (*causes, *watchdogs)), ""),
        action=action,
        alerts=watchdogs,
        channels=tuple(dict.fromkeys(channels)),
        steps_lost=repeated if causes else 0,
        back_s=back_s if fault.resumes else None,
        wrong=tuple(name for name, is_met in demands.items() if not is_met),
    )
