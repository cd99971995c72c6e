"""Settlement: the one idempotent step that turns an ended life into an outcome, and acts on it.

Anyone who owns the train may settle: the guard of the life itself, that of the next one, a cron tick, a verb. Killed at
any line, it is done again from the start by whoever comes next: acting twice changes nothing, and end.json, which says
that nothing is left to do, is written last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime

from opsctl.config import Guard
from opsctl.errors import Unreachable
from opsctl.guard import record
from opsctl.guard.evidence import gather
from opsctl.guard.outcome import ACTIONS, Action, Ended, Outcome, crash_loop, judge
from opsctl.journal import Event, Kind, replay
from opsctl.launch.chain import Chain, Seen
from opsctl.lease import lease
from opsctl.model import Job
from opsctl.ports import Scheduler
from opsctl.rundir import Life, RunDir

LIFE = re.compile(r"(\d+)(?:_(\d+))?\.(\d+)", re.ASCII)
_ANEW = {Kind.SUBMITTED, Kind.RELEASED, Kind.EDITED}
"""After these, earlier crashes say nothing: somebody has looked at it."""


def settle(chain: Chain, rules: Guard, life: Life, *, job: Job | None = None) -> Ended:
    """Settle an ended life, or say how it was settled. `job` is what Slurm said of it when it was over, if anything.

    Raises OpsctlError if it could not act or not write it down; then the life is as unsettled as before.
    """
    journal = chain.journal
    with lease(chain.run.path, journal.clock):
        if done := read_end(life):
            return done
        events = journal.events()
        ended = _decide(chain, rules, life, job, events)
        said = replay(events).settled.get(life.name)
        if said is None:
            _act(chain, ended)
            journal.append(Kind.LIFE_SETTLED, life=life.name, outcome=ended.outcome, action=ended.action, why=ended.why)
        else:
            ended = replace(
                ended, outcome=Outcome(said.data["outcome"]), action=Action(said.data["action"]), why=said.data["why"]
            )
        life.path.mkdir(parents=True, exist_ok=True)
        chain.run.write(life.end, json.dumps(asdict(ended), default=str, indent=1) + "\n")
    return ended


def _act(chain: Chain, ended: Ended) -> None:
    why = f"{ended.life} {ended.outcome.value}: {ended.why}"
    if ended.action is Action.CANCEL_QUEUED:
        chain.cancel(why, queued_only=True)
    elif ended.action is Action.HOLD_QUEUED:
        chain.hold(ended.why)


def read_end(life: Life) -> Ended | None:
    """How the life was settled, or None if it was not."""
    try:
        given = json.loads(life.end.read_text())
        times = {key: datetime.fromisoformat(given[key]) for key in ("started", "ended")}
        return Ended(**{**given, **times, "outcome": Outcome(given["outcome"]), "action": Action(given["action"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _decide(chain: Chain, rules: Guard, life: Life, job: Job | None, events: Sequence[Event]) -> Ended:
    run, now = chain.run, chain.journal.clock.now()
    evidence, at = gather(run, life, job)
    outcome, why = judge(evidence)
    began = record.read_start(life)
    started = began.at if began else replay(list(events)).started.get(life.name, at or now)
    ended = Ended(
        life=life.name, outcome=outcome, action=ACTIONS[outcome], why=why, started=started, ended=at or now,
        new_checkpoint=began is not None and record.newest_checkpoint(run) > began.checkpoint,
    )  # fmt: skip
    if _is_overtaken(ended, events):
        return replace(ended, action=Action.CONTINUE, why=f"{why}; launched or released again since")
    if ended.action is Action.CONTINUE and (loop := crash_loop(_lately(run, ended, events), rules)):
        return replace(ended, action=Action.HOLD_QUEUED, why=f"{why}; {loop}")
    return ended


def _is_overtaken(ended: Ended, events: Sequence[Event]) -> bool:
    """Whether somebody has decided since the life ended: what they launched is not to be cancelled, nor held again."""
    began = max((e.number for e in events if e.kind is Kind.LIFE_STARTED and e.data["life"] == ended.life), default=0)
    later = {event.kind for event in events if event.number > began and event.when > ended.ended}
    if ended.action is Action.HOLD_QUEUED:
        return bool(later & {Kind.SUBMITTED, Kind.RELEASED})
    return ended.action is Action.CANCEL_QUEUED and Kind.SUBMITTED in later


def _lately(run: RunDir, ended: Ended, events: Sequence[Event]) -> list[Ended]:
    """The lives settled since somebody last looked after the train, and this one, in the order in which they began."""
    since = max((event.number for event in events if event.kind in _ANEW), default=0)
    settled = {event.data["life"] for event in events if event.kind is Kind.LIFE_SETTLED and event.number > since}
    began = [life for life in replay(list(events)).started if life in settled - {ended.life}]
    earlier = [done for life in began if (done := read_end(run.life(life)))]
    return sorted([*earlier, ended], key=lambda each: each.started) if began else [ended]


def settle_ended(
    chain: Chain, rules: Guard, seen: Seen, *, own: str = "", past: Sequence[Job] | None = None
) -> list[Ended]:
    """Settle every life that is over and that nobody settled, in the order in which they began; never `own`.

    `past` is what accounting says of those that the queue has forgotten, if that was asked already.
    """
    over = [life for life in _over(chain.run, seen) if life.name != own]
    past = remembered(chain.scheduler, vanished(chain.run, seen) if over else []) if past is None else past
    return [settle(chain, rules, life, job=_final(life, [*seen.jobs, *past])) for life in over]


def unsettled(run: RunDir, seen: Seen) -> list[Life]:
    """The lives without a settlement, in the order of the journal; at the end those that the journal does not know."""
    began = [name for name in seen.history.started if name not in seen.history.settled]
    lying = sorted(life.name for life in run.lives() if LIFE.fullmatch(life.name) and not life.end.exists())
    return [run.life(name) for name in dict.fromkeys([*began, *lying])]


def _is_over(life: Life, jobs: Sequence[Job]) -> bool:
    """Slurm answered, and does not have the life's job, or only a later life of it, or says that it ended."""
    restart = int(life.name.rpartition(".")[2])
    rows = [job for job in jobs if _is_of(job, life)]
    return all(job.restarts > restart or job.state.is_final or job.state.is_waiting for job in rows)


def _is_of(job: Job, life: Life) -> bool:
    array, _, task = life.job.partition("_")
    return job.array == array and (int(task) in job.tasks if task else job.id == array)


def _final(life: Life, jobs: Sequence[Job]) -> Job | None:
    """What Slurm says of this very life, not of a later one of the same job."""
    restart = int(life.name.rpartition(".")[2])
    own = (job for job in jobs if _is_of(job, life) and job.restarts == restart and job.state.is_final)
    return next(own, None)


def vanished(run: RunDir, seen: Seen) -> list[str]:
    """The arrays of ended lives that nobody settled and of which the queue says nothing any more."""
    return list(dict.fromkeys(life.array for life in _over(run, seen) if _final(life, seen.jobs) is None))


def remembered(scheduler: Scheduler, arrays: Sequence[str]) -> list[Job]:
    """One question to accounting for all of them; nothing where it does not answer."""
    try:
        return scheduler.past(arrays) if arrays else []
    except Unreachable:
        return []


def _over(run: RunDir, seen: Seen) -> list[Life]:
    return [life for life in unsettled(run, seen) if _is_over(life, seen.jobs)]
